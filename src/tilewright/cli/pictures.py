"""Pictures as inputs: read by Pillow, fitted to the input's size, normalized on request.

The preprocessing is reported, since pixels outside the trained range give meaningless results.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import numpy as np

from tilewright.base.errors import InputError, UnsupportedError
from tilewright.base.text import plural, reason
from tilewright.cli.output import note
from tilewright.cli.wrong_option import OptionError

if TYPE_CHECKING:
    from tilewright.cli.inputs import InputType

Array = np.ndarray[Any, Any]

# The format that Pillow may read, by suffix: otherwise it decides by the contents, among dozens of
# formats.
_FORMATS: Final = {
    ".jpg": "JPEG",
    ".jpeg": "JPEG",
    ".png": "PNG",
    ".webp": "WEBP",
    ".bmp": "BMP",
}
_MODES: Final = {1: "L", 3: "RGB"}  # Pillow's names, by the number of channels
_MEAN, _STD = "mean", "std"


def is_picture(path: Path) -> bool:
    """Whether the file is read as a picture, by its suffix."""
    return path.suffix.lower() in _FORMATS


def pixel_options() -> tuple[Callable[..., Any], ...]:
    """The options `--mean` and `--std`, which `read` looks up itself."""
    return tuple(
        click.option(
            f"--{name}", type=_numbers, expose_value=False, callback=_kept, help=said
        )
        for name, said in (
            (_MEAN, "For pictures: subtract from each channel (0 to 1)."),
            (_STD, "For pictures: then divide each channel by these."),
        )
    )


def check_used(paths: Iterable[Path]) -> None:
    """Raise InputError if --mean or --std is given without a picture."""
    if any(map(is_picture, paths)):
        return
    for name in (_MEAN, _STD):
        if _chosen(name) is not None:
            raise OptionError(
                "it is for pictures, but none is given",
                where=f"--{name}",
                hint="Give one, as in --input x=cat.jpg, or leave it out",
            )


def read(path: Path, tensor: InputType, known: Mapping[str, int]) -> Array:
    """Read a picture as an input: scale its shorter side to fit, and crop its center.

    known: extents of symbolic dimensions; others are the picture's. Floats are scaled to 0 to 1,
    minus --mean, divided by --std; uint8 values are unchanged. Raises InputError if the input
    cannot be a picture, or the file is none; UnsupportedError without Pillow.
    """
    channels, axes = _axes(tensor)
    image = _opened(path, _MODES[channels])
    own = image.size
    shape = tensor.shape or ()
    sides = (shape[axes.index("W")], shape[axes.index("H")])
    width, height = (
        side if isinstance(side, int) else known.get(side or "", length)
        for side, length in zip(sides, own)
    )
    fitted = _fitted(image, width, height)
    said = f"{path.name}, {own[0]}x{own[1]}, {fitted}, {_MODES[channels]}"
    array = np.asarray(_cut(image, width, height)).reshape(height, width, channels)
    values, how = _normalized(array, tensor, channels)
    note(f"input {tensor.name!r}: {said}, {how}")
    order = ["HWC".index(axis) for axis in axes if axis != "N"]
    values = values.transpose(order)
    return np.ascontiguousarray(values[None] if "N" in axes else values)


def _axes(tensor: InputType) -> tuple[int, str]:
    """The number of channels of an input, and the meaning of its axes, such as NCHW."""
    shape = tensor.shape or ()
    for axes in ("NCHW", "NHWC", "CHW", "HWC"):
        channels = shape[axes.index("C")] if len(shape) == len(axes) else None
        if isinstance(channels, int) and channels in _MODES:
            return channels, axes
    raise InputError(
        f"expected {tensor.text}, which is not a picture",
        where=f"input {tensor.name!r}",
        hint="Pictures are for inputs of 1 or 3 channels, such as [1, 3, H, W]; give an .npy file",
    )


def _opened(path: Path, mode: str) -> Any:
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise UnsupportedError(
            "pictures are read by Pillow, which is not installed",
            where=str(path),
            hint="pip install 'tilewright[images]'",
        ) from None
    known = (_FORMATS[path.suffix.lower()],)
    with path.open("rb") as file, warnings.catch_warnings():
        # So many pixels that the file may be an attempt to exhaust the memory.
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            with Image.open(file, formats=known) as image:
                return ImageOps.exif_transpose(image).convert(mode)
        except (
            OSError,
            ValueError,
            SyntaxError,
            Image.DecompressionBombError,
            Image.DecompressionBombWarning,
        ) as error:
            raise InputError(
                f"cannot be read as {known[0]}: {reason(error)}",
                where=str(path),
                hint="Give a whole picture",
            ) from None


def _size(image: Any, width: int, height: int) -> tuple[int, int]:
    """The smallest size with the picture's proportions that covers width x height."""
    scale = max(width / image.width, height / image.height)
    return max(width, round(image.width * scale)), max(
        height, round(image.height * scale)
    )


def _fitted(image: Any, width: int, height: int) -> str:
    """A description of what `_cut` does."""
    across, down = _size(image, width, height)
    done = (
        []
        if (across, down) == image.size
        else [f"scaled to {across}x{down} (bilinear)"]
    )
    done += [] if (across, down) == (width, height) else [f"middle {width}x{height}"]
    return ", ".join(done) or "unchanged"


def _cut(image: Any, width: int, height: int) -> Any:
    from PIL.Image import Resampling

    across, down = _size(image, width, height)
    scaled = image.resize((across, down), Resampling.BILINEAR)
    left, top = (across - width) // 2, (down - height) // 2
    return scaled.crop((left, top, left + width, top + height))


def _normalized(array: Array, tensor: InputType, channels: int) -> tuple[Array, str]:
    """The bytes as the input's type, and a description of the conversion."""
    mean, std = _chosen(_MEAN), _chosen(_STD)
    where = f"input {tensor.name!r}"
    if tensor.dtype is None or not (
        tensor.dtype.is_float or tensor.dtype.name == "uint8"
    ):
        raise InputError(
            f"expected {tensor.text}, and a picture is uint8 or floats",
            where=where,
            hint="Give an .npy file",
        )
    if not tensor.dtype.is_float:
        if mean is not None or std is not None:
            raise InputError(
                f"--mean and --std are for floats, but it is {tensor.text}",
                where=where,
                hint="Leave them out",
            )
        return array, "0 to 255"
    values = array.astype(np.float64) / 255
    words = ["0 to 1"]
    for name, numbers, do, word in (
        (_MEAN, mean, np.subtract, "less"),
        (_STD, std, np.divide, "by"),
    ):
        if numbers is None:
            continue
        if len(numbers) not in (1, channels):
            raise OptionError(
                f"{plural(len(numbers), 'number')} for {plural(channels, 'channel')}",
                where=f"--{name}",
                hint="Give one for each channel, or one for all",
            )
        values = do(values, numbers)
        words.append(f"{word} --{name} {','.join(f'{n:g}' for n in numbers)}")
    if len(words) == 1:
        words.append("without --mean and --std")
    return values.astype(tensor.dtype.numpy), ", ".join(words)


def _numbers(text: str) -> tuple[float, ...]:
    """`0.485,0.456,0.406`."""
    try:
        return tuple(map(float, text.split(",")))
    except ValueError:
        raise click.BadParameter(
            f"{text!r}: expected numbers, such as 0.5,0.5,0.5"
        ) from None


_numbers.__name__ = "numbers"


def _kept(
    context: click.Context, option: click.Parameter, value: tuple[float, ...] | None
) -> None:
    if option.name == _STD and value is not None and 0 in value:
        raise click.BadParameter("nothing is divided by 0", context, option)
    context.meta[f"{__name__}.{option.name}"] = value


def _chosen(name: str) -> tuple[float, ...] | None:
    """The value given to the running command; None also outside commands."""
    context = click.get_current_context(silent=True)
    found: tuple[float, ...] | None = None
    if context is not None:
        found = context.meta.get(f"{__name__}.{name}")
    return found
