"""Input data for a model: read from NumPy files, or random with a seed."""

from __future__ import annotations

import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import ALL, DType
from tilewright.base.errors import InputError
from tilewright.base.text import did_you_mean
from tilewright.cli import pictures
from tilewright.cli.output import note
from tilewright.cli.wrong_option import OptionError
from tilewright.driver.random_inputs import random_array
from tilewright.runtime.dispatch import show

if TYPE_CHECKING:
    from tilewright.graph.nodes import Graph
    from tilewright.runtime.executable import Executable
    from tilewright.runtime.ranged import RangedExecutable

Array = np.ndarray[Any, Any]

# The first bytes of array files and archives; the exceptions of NumPy for damaged ones.
_MARKS: Final = (b"\x93NUMPY", b"PK")
_UNREADABLE: Final = (ValueError, EOFError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True)
class InputType:
    """An input: a name, an element type, extents (a name if symbolic); None if unknown."""

    name: str
    dtype: DType | None
    shape: tuple[int | str | None, ...] | None

    @property
    def text(self) -> str:
        """`float32[1, N, ?]`."""
        element = "?" if self.dtype is None else str(self.dtype)
        if self.shape is None:
            return element
        return (
            f"{element}[{', '.join('?' if d is None else str(d) for d in self.shape)}]"
        )


def of_graph(graph: Graph) -> list[InputType]:
    """The inputs of a graph."""
    return [
        InputType(v.name, v.dtype if v.kind == "tensor" else None, v.shape)
        for v in graph.inputs
    ]


def of_executable(exe: Executable) -> list[InputType]:
    """The inputs of a compiled model."""
    known = {dtype.name: dtype for dtype in ALL}
    return [InputType(t.name, known.get(t.dtype), t.shape) for t in exe.inputs]


def of_ranges(
    exe: RangedExecutable, dims: Mapping[str, int], ranges: Mapping[str, Any]
) -> tuple[list[InputType], dict[str, int]]:
    """The inputs of a model for ranges of shapes, with the greatest extents.

    dims, ranges: what --dim says. Raises InputError for a range, or a dimension it does not have.
    """
    have = ", ".join(f"{n}: {show(e)}" for n, e in exe.allowed.items())
    for name in (*ranges, *dims):
        if name in ranges or name not in exe.allowed:
            raise OptionError(
                f"{name!r} has no one value that the artifact may have",
                where="--dim",
                hint=f"give one value of: {have}",
            )
    known = {dtype.name: dtype for dtype in ALL}
    wanted = [InputType(v.name, known.get(v.dtype), v.shape) for v in exe.given]
    return wanted, {name: max(extents) for name, extents in exe.allowed.items()}


def names(files: Iterable[tuple[str, Path]], archive: Path | None) -> set[str]:
    """The names of the inputs that files provide. Raises InputError as `gather` does."""
    return {
        *(archive_of(archive) if archive is not None else ()),
        *(n for n, _ in files),
    }


def gather(
    wanted: Sequence[InputType],
    files: Iterable[tuple[str, Path]] = (),
    archive: Path | None = None,
    seed: int = 0,
    dims: Mapping[str, int] | None = None,
    unless_given: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, Array]:
    """An array for each input: from ``files`` (.npy, pictures) or ``archive`` (.npz), or random.

    Floats are normal, integers small and not negative, so that they are valid indices. A symbolic
    extent comes from ``dims``, else from the arrays given; else it is as in ``unless_given``, the
    greatest of its range, or 1, and a note says so. Raises InputError for a file that cannot be
    read, a name the model does not have, and two files for one.
    """
    files = list(files)
    _check_once(name for name, _ in files)
    pictures.check_used(path for _, path in files)
    drawn = {name: path for name, path in files if pictures.is_picture(path)}
    given = archive_of(archive) if archive is not None else {}
    given |= {name: _read_array(path) for name, path in files if name not in drawn}
    known_names = [tensor.name for tensor in wanted]
    for name in (*given, *drawn):
        if name not in known_names:
            raise InputError(
                f"the model has no input {name!r}",
                where="inputs",
                hint=did_you_mean(name, known_names),
            )
    known = dict(dims or {})
    for tensor in wanted:
        if tensor.name in drawn:
            given[tensor.name] = pictures.read(drawn[tensor.name], tensor, known)
        if tensor.name in given:
            given[tensor.name] = _fitting(tensor, given[tensor.name], known)
    return {
        tensor.name: given[tensor.name]
        if tensor.name in given
        else _draw(tensor, seed, known, unless_given)
        for tensor in wanted
    }


def _check_once(names: Iterable[str]) -> None:
    """Raise InputError for a name that is there twice."""
    for name, count in Counter(names).items():
        if count > 1:
            raise InputError(
                f"input {name!r} is given {count} times", hint="give one file for it"
            )


def _fitting(tensor: InputType, array: Array, known: dict[str, int]) -> Array:
    """The array if it fits; the extents of symbolic dimensions in its shape go into `known`."""
    if tensor.dtype is not None:
        expected = tensor.dtype.numpy
        if array.dtype.kind == "V" and array.dtype.itemsize == expected.itemsize:
            # NumPy's file format has no names for bfloat16 and the like.
            array = array.view(expected)
        if not tensor.dtype.is_string and array.dtype != expected:
            raise _misfit(tensor, array)
    if tensor.shape is not None:
        if len(tensor.shape) != array.ndim:
            raise _misfit(tensor, array)
        for dim, extent in zip(tensor.shape, array.shape):
            wanted = known.setdefault(dim, extent) if isinstance(dim, str) else dim
            if wanted is not None and wanted != extent:
                raise _misfit(
                    tensor, array, f" with {dim}={wanted}" if wanted != dim else ""
                )
    return array


def _misfit(tensor: InputType, array: Array, where: str = "") -> InputError:
    found = f"{array.dtype}[{', '.join(map(str, array.shape))}]"
    return InputError(
        f"expected {tensor.text}{where}, got {found}",
        where=f"input {tensor.name!r}",
        hint="Convert the file, or leave it out for random values",
    )


def _read_array(path: Path) -> Array:
    try:
        loaded = np.load(path, allow_pickle=False)
    except _UNREADABLE as error:
        raise _unreadable(path, error, "one array") from None
    if not isinstance(loaded, np.ndarray):
        raise InputError(
            "an .npz archive was given where one array was expected",
            where=str(path),
            hint="Use --inputs",
        )
    return loaded


def archive_of(path: Path) -> dict[str, Array]:
    """The arrays of an .npz file by name. Raises InputError if it cannot be read."""
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            raise InputError(
                "one array was given where an .npz archive was expected",
                where=str(path),
                hint="Use --input NAME=FILE",
            )
        with loaded as archive:
            return {name: archive[name] for name in archive.files}
    except _UNREADABLE as error:
        raise _unreadable(path, error, "an .npz archive of named arrays") from None


def _unreadable(path: Path, error: Exception, expected: str) -> InputError:
    with path.open("rb") as file:
        known = file.read(len(_MARKS[0])).startswith(_MARKS)
    # NumPy treats a file in none of its formats as a pickle, and suggests loading it as one.
    return InputError(
        f"cannot be read: {error}" if known else "not a NumPy file",
        where=str(path),
        hint=f"Expected {expected}, as written by numpy.save or numpy.savez, without objects",
    )


def _draw(
    tensor: InputType, seed: int, known: dict[str, int], greatest: Mapping[str, int]
) -> Array:
    if tensor.dtype is None or tensor.shape is None or tensor.dtype.is_string:
        kind = (
            "of strings"
            if tensor.dtype is not None and tensor.dtype.is_string
            else "of unknown type or rank"
        )
        raise InputError(
            f"cannot generate random values for an input {kind}",
            where=f"input {tensor.name!r}",
            hint=f"Give it: --input {tensor.name}=FILE.npy",
        )
    shape = tuple(
        _extent(tensor.name, axis, dim, known, greatest)
        for axis, dim in enumerate(tensor.shape)
    )
    return random_array(tensor.name, tensor.dtype, shape, seed)


def _extent(
    name: str,
    axis: int,
    dim: int | str | None,
    known: dict[str, int],
    greatest: Mapping[str, int],
) -> int:
    """An extent; one that nothing gives is assumed, noted, and from then on known."""
    if isinstance(dim, int):
        return dim
    key = dim if dim is not None else f"{name}.{axis}"
    if key not in known:
        known[key] = greatest.get(key, 1)
        of_range = f"has a range: assumed {known[key]}, its greatest"
        said = of_range if key in greatest else f"is not given: assumed {known[key]}"
        how = f"; --dim {dim}=N changes it" if dim is not None else ""
        note(f"dimension {key!r} {said}{how}")
    return known[key]
