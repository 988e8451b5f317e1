"""Options that several commands share, and the types of their values."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from tilewright.base import modes
from tilewright.base.dataclass import dataclass
from tilewright.base.dims_hint import flag_value
from tilewright.base.errors import InputError
from tilewright.base.files import check_writable
from tilewright.base.flags import parse_size
from tilewright.base.text import plural, reason
from tilewright.cli.output import note
from tilewright.cli.pictures import pixel_options
from tilewright.cli.wrong_option import OptionError, of_option
from tilewright.runtime.threads import MAX_THREADS, THREAD_FLAGS, affinity, thread_count

_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}

T = TypeVar("T")
Verb = Callable[..., Any]
Extents = int | tuple[int, ...] | list[int]  # of a dimension: as in `driver.dims`


def _parsed(name: str, parse: Callable[[str], T], expected: str) -> Callable[[str], T]:
    """A type for click from a function that raises ValueError; ``expected`` ends the message."""

    def convert(text: str) -> T:
        try:
            return parse(text)
        except ValueError:
            raise click.BadParameter(f"{text!r}: expected {expected}") from None

    # Click shows it in the help, in capitals.
    convert.__name__ = name
    return convert


def _pair(text: str) -> tuple[str, str]:
    # Split at the last "=": names of tensors may contain one; paths and numbers rarely do.
    name, sign, value = text.rpartition("=")
    if not (name and sign and value):
        raise ValueError(text)
    return name, value


def _extent(text: str) -> tuple[str, Extents]:
    """`n=8`, `n=1..64`, `n=16..64..16` or `n=1,8,64`, as `dims` of `driver.compile` has them."""
    name, value = _pair(text)
    dots = ".." in value
    found = tuple(map(int, value.split(".." if dots else ",")))
    if min(found) < 0 or (dots and (found[0] > found[1] or 0 in found[2:])):
        raise ValueError(text)
    if dots and len(found) > 3:
        raise ValueError(text)
    if dots:
        return name, found
    return name, list(found) if len(found) > 1 else found[0]


def _file(text: str) -> tuple[str, Path]:
    name, value = _pair(text)
    return name, Path(value)


def _ids(text: str) -> list[int]:
    found = [int(part) for part in text.split(",")]
    if min(found) < 0:
        raise ValueError(text)
    return found


def _amount(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise ValueError(text)
    return value


def _duration(text: str) -> float:
    """Seconds of `90`, `90s`, `10m` or `1.5h`."""
    number, unit = (text[:-1], text[-1]) if text[-1:] in _UNITS else (text, "s")
    seconds = float(number) * _UNITS[unit]
    if not 0 < seconds < math.inf:
        raise ValueError(text)
    return seconds


def _out(text: str) -> Path:
    """A file to write; if it cannot be written, this is reported before the work starts."""
    path = Path(text)
    if not text:
        raise InputError("the file name is empty", hint="Name a file")
    if path.is_dir():
        raise InputError("it is a folder", where=text, hint="Name a file")
    if text == "-":
        raise InputError(
            "it would be a file of this name, and not standard output",
            where=text,
            hint="Name a file, or write ./- for one called so",
        )
    if not path.parent.is_dir():
        raise InputError(
            f"the folder {str(path.parent)!r} does not exist",
            where=text,
            hint="Create it first",
        )
    check_writable(path)
    return path


# Click shows it in the help, in capitals.
_out.__name__ = "file"

SIZE: Final = _parsed("size", parse_size, "bytes, such as 1073741824, 512M or 2GiB")
EXTENT: Final = _parsed(
    "name=extent",
    _extent,
    "NAME=EXTENT, such as batch=1, or NAME=LEAST..GREATEST, such as batch=1..64",
)
DURATION: Final = _parsed("time", _duration, "a time, such as 90s, 10m or 1.5h")
IDS: Final = _parsed("ids", _ids, "ids of tokens, such as 5,17")
AMOUNT: Final = _parsed("number", _amount, "a number of at least 0")
FILE: Final = _parsed(
    "name=file",
    _file,
    "NAME=FILE.npy, such as image=cat.npy; --inputs takes an .npz file of all",
)
PATH: Final = click.Path(path_type=Path)
FOLDER: Final = click.Path(path_type=Path, exists=True, file_okay=False)
OUT: Final = _out


_NO_RECORDS: Final = ""  # the value of --no-records


@dataclass(frozen=True)
class CommandOptions:
    """The compile options of the command line; None leaves an option to the environment."""

    target: str = "cpu"
    mcpu: str = "native"
    threads: int | None = None
    fallback: str | None = None
    math: str = "default"
    precision: str | None = None
    use_cache: bool = True
    memory_limit: int | None = None
    trust: bool = False
    external_data_root: tuple[Path, ...] = ()
    no_default: tuple[str, ...] = ()
    sanitize: bool = False
    fusion: bool = True
    optimize: str = "fast"
    dim: tuple[tuple[str, Extents], ...] = ()
    jit: bool = True
    scales: Path | None = None
    description: str | None = None
    schedules: Path | None = None
    records: str | None = None

    @property
    def dims(self) -> dict[str, int]:
        """The extents of symbolic dimensions with one value, by name."""
        return {name: e for name, e in self.dim if isinstance(e, int)}

    @property
    def ranges(self) -> dict[str, tuple[int, ...] | list[int]]:
        """The extents that the other dimensions may have."""
        return {name: e for name, e in self.dim if not isinstance(e, int)}

    def reading(self) -> dict[str, Any]:
        """The keyword arguments of `frontends.load`."""
        return {
            "memory_limit": self.memory_limit,
            "trust": self.trust,
            "inputs": self.no_default,
            "external_data_roots": tuple(map(str, self.external_data_root)),
        }

    def keywords(self) -> dict[str, Any]:
        """The keyword arguments of `driver.compile` for a model that was read."""
        return {
            "target": self.target,
            "mcpu": self.mcpu,
            "machine": self.description,
            "schedules": {} if self.schedules is None else _schedules(self.schedules),
            "records": False if self.records == _NO_RECORDS else self.records,
            "threads": self.threads,
            "fallback": self.fallback,
            "math": self.math,
            "precision": self.precision,
            "cache": None if self.use_cache else False,
            "memory_limit": self.memory_limit,
            "trust": self.trust,
            "sanitize": self.sanitize,
            "fusion": self.fusion,
            "optimize": self.optimize,
            "dims": dict(self.dim) or None,
            "jit": self.jit,
        }


class _Mode(click.Choice[str]):
    """One of some words; for a word that was replaced, the error names the replacement."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        flag = param.opts[0] if param else ""
        if now := modes.REPLACED.get(f"{flag} {value}"):
            self.fail(f"{value!r} was replaced: use {now}", param, ctx)
        return super().convert(value, param, ctx)


def threads_option(text: str) -> Callable[[Verb], Verb]:
    """--threads, with this help; more than the machine has processors are noted."""
    how: dict[str, Any] = {"type": click.IntRange(1, MAX_THREADS), "help": text}
    return click.option("--threads", callback=_note_many, **how)


def _note_many(
    context: click.Context, option: click.Parameter, given: int | None
) -> int | None:
    """The number that was given; it, or that of the environment, is compared with the machine's."""
    usable = len(affinity())
    if thread_count(given) > usable:
        asked = next((f for f in THREAD_FLAGS if f.get() is not None), None)
        source = "" if given or asked is None else f", of {asked.name},"
        processors = plural(usable, "processor")
        note(
            f"{thread_count(given)} threads{source} on {processors} here: "
            "they wait for one another"
        )
    return given


def _fallback_option(verb: Verb) -> Verb:
    short = click.option(
        "--no-fallback",
        "fallback",
        flag_value="error",
        help="Same as --fallback error.",
    )
    long = click.option(
        "--fallback",
        type=_Mode(modes.FALLBACK),
        help="Operators without native code: warn (default) or error.",
    )
    return short(long(verb))


def _records_option(verb: Verb) -> Verb:
    off = click.option(
        "--no-records",
        "records",
        flag_value=_NO_RECORDS,
        help="Use no tuning records.",
    )
    file = click.option(
        "--records",
        metavar="FILE",
        help="Tuning records to use; default: the user's records.",
    )
    return file(off(verb))


def _schedules(file: Path) -> Any:
    """The contents of the file, checked later. Raises InputError for one that is not JSON."""
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"--schedules cannot be read: {reason(error)}",
            where=str(file),
            hint="give values by kernel, as run --profile --why --json shows them",
        ) from None


trust_option: Final = click.option(
    "--trust", is_flag=True, help="Load a .pt2 even if that may execute code in it."
)

external_option: Final = click.option(
    "--external-data-root",
    multiple=True,
    type=FOLDER,
    help="Also allow external weights in this folder.",
)

_COMPILE: Final[tuple[Callable[[Verb], Verb], ...]] = (
    click.option(
        "--target", default="cpu", show_default=True, help="Target to compile for."
    ),
    click.option(
        "--mcpu",
        default="native",
        show_default=True,
        help="Processor: native, x86-64-v3, ...",
    ),
    threads_option("Number of threads; default: the available cores."),
    _fallback_option,
    click.option(
        "--math",
        type=_Mode(modes.MATH),
        default="default",
        show_default=True,
        help="How far rounding may differ from the model as written.",
    ),
    click.option(
        "--precision",
        type=click.Choice(modes.PRECISION),
        help="Store the weights of products in a lower precision; bfloat16 convolves in it, too. "
        "tf32: target cuda multiplies float32 on tensor cores.",
    ),
    click.option(
        "--cache/--no-cache",
        "use_cache",
        default=True,
        help="Use the kernel cache on disk.",
    ),
    click.option("--memory-limit", type=SIZE, help="Reject a model that needs more."),
    trust_option,
    external_option,
    click.option(
        "--no-default",
        multiple=True,
        metavar="NAME",
        help="Require this input in every call, although it has a default.",
    ),
    click.option(
        "--sanitize", is_flag=True, help="Check every memory access at run time."
    ),
    click.option(
        "--no-fusion",
        "fusion",
        flag_value=False,
        default=True,
        help="Run one operator at a time, for comparison.",
    ),
    click.option(
        "--optimize",
        type=_Mode(modes.OPTIMIZE),
        default="fast",
        show_default=True,
        help="Substitutions to take: those that reduce the arithmetic, or what a search finds.",
    ),
    click.option(
        "--dim",
        multiple=True,
        type=EXTENT,
        help="Value of a symbolic dimension, as in --dim batch=8; run also takes 1..64 and, with a "
        "step, 16..64..16.",
    ),
    click.option(
        "--no-jit",
        "jit",
        flag_value=False,
        default=True,
        help="Compile all shapes of --dim in advance, none during a call.",
    ),
    click.option(
        "--scales", type=PATH, help="For an 8-bit target: the file written by quantize."
    ),
    click.option(
        "--machine",
        "description",
        metavar="NAME|FILE",
        help="Machine description file; for npu also a name, such as wide.",
    ),
    click.option(
        "--schedules",
        type=PATH,
        help="Parameters by kernel, as JSON: see run --profile --why.",
    ),
    _records_option,
)


COMPILE: Final = tuple(field.name for field in fields(CommandOptions))


def compile_options(*names: str, ranges: bool = False) -> Callable[[Verb], Verb]:
    """Give a command the compile options of these names, which are fields of CompileOptions.

    The command receives them as `options: CompileOptions`; the others keep their defaults. ranges:
    it takes ranges of extents, as one that takes --no-jit does.
    """

    def decorated(verb: Verb) -> Verb:
        @wraps(verb)
        def gathered(**values: Any) -> Any:
            chosen = CommandOptions(**{name: values.pop(name) for name in names})
            _check_names(chosen)
            _check_machine(chosen)
            if "jit" not in names and not ranges:
                _check_fixed(chosen)
            return verb(options=chosen, **values)

        rows = dict(zip(COMPILE, _COMPILE, strict=True))
        return _decorated(gathered, tuple(rows[name] for name in names))

    return decorated


def given() -> dict[str, str]:
    """The options given on the command line of the running command: parameter to flag."""
    context = click.get_current_context()
    found = {}
    for option in context.command.params:
        name = option.name or ""
        said = (
            context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        )
        if said and isinstance(option, click.Option):
            off = option.secondary_opts and context.params[name] is False
            spellings = option.secondary_opts if off else option.opts
            # The first long form: --output for -o.
            found[name] = max(spellings, key=lambda flag: flag.startswith("--"))
    return found


def refuse(
    names: Collection[str], why: str, hint: str, where: str | None = None
) -> None:
    """Raise OptionError if one of these parameters is given, because it would have no effect.

    why: the rest of the message, after the flags.
    """
    flags = [flag for name, flag in given().items() if name in names]
    if flags:
        raise OptionError(f"{', '.join(flags)}: {why}", where=where, hint=hint)


def allow(
    names: Collection[str], why: str, hint: str, where: str | None = None
) -> None:
    """Raise OptionError, as `refuse` does, for any given parameter except these."""
    refuse(given().keys() - set(names), why, hint, where)


def _check_fixed(options: CommandOptions) -> None:
    """Raise OptionError for a range of extents, in a command that needs one value."""
    for name, extents in options.ranges.items():
        raise OptionError(
            f"{name} has no single value, but {flag_value(extents)}, which only run, bench, "
            "compile and explain take",
            where="--dim",
            hint=f"give one value: --dim {name}=1",
        )


def _check_names(options: CommandOptions) -> None:
    """Raise OptionError for a target or a processor that there is not."""
    if options.target == "cpu" and options.mcpu in ("native", "multi"):
        return
    from tilewright.targets import registry

    if options.target not in registry.names():
        with of_option("--target"):
            registry.target(options.target)
    if options.target == "cpu":
        with of_option("--mcpu"):
            for name in options.mcpu.split(","):
                registry.target("cpu", name)


def _check_machine(options: CommandOptions) -> None:
    """Raise OptionError for options that the target does not take."""
    if (options.description, options.scales, options.precision) == (None, None, None):
        return
    from tilewright.targets import registry

    def described(name: str) -> bool:
        return bool(registry.machines(name))

    def quantizes(name: str) -> bool:
        return registry.target(name).quantizes

    def has_precision(name: str) -> bool:
        return options.precision in modes.PRECISIONS.get(name, ())

    names = registry.names()
    for flag, value, takes in (
        ("--machine", options.description, described),
        ("--scales", options.scales, quantizes),
        ("--precision", options.precision, has_precision),
    ):
        if value is not None and not takes(options.target):
            raise OptionError(
                f"--target {options.target} does not take {value}",
                where=flag,
                hint=f"for --target {', '.join(filter(takes, names))}",
            )


_INPUTS: Final = (
    click.option(
        "--input",
        "files",
        multiple=True,
        type=FILE,
        help="Read one input from an .npy file, or a picture (.jpg, .png, .webp, .bmp).",
    ),
    *pixel_options(),
    click.option(
        "--inputs", "archive", type=PATH, help="Read inputs by name from an .npz file."
    ),
    click.option(
        "--seed",
        default=0,
        show_default=True,
        type=click.IntRange(0),
        help="Seed of random inputs.",
    ),
)


def input_options(verb: Verb) -> Verb:
    """Options about input data: `files`, `archive`, `seed`."""
    return _decorated(verb, _INPUTS)


json_option: Final = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
model_argument: Final = click.argument("model", type=PATH)


def _decorated(verb: Verb, options: tuple[Callable[[Verb], Verb], ...]) -> Verb:
    for option in reversed(options):
        verb = option(verb)
    return verb
