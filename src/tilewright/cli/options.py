"""Options that several verbs share, and the types of their values."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from tilewright.base.errors import InputError
from tilewright.base.flags import parse_size

T = TypeVar("T")
Verb = Callable[..., Any]

MATH: Final = ("exact", "strict", "fast")


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
    # The last "=": names of tensors may hold one, paths and numbers here seldom do.
    name, sign, value = text.rpartition("=")
    if not (name and sign and value):
        raise ValueError(text)
    return name, value


def _extent(text: str) -> tuple[str, int]:
    name, value = _pair(text)
    if (extent := int(value)) < 0:
        raise ValueError(text)
    return name, extent


def _file(text: str) -> tuple[str, Path]:
    name, value = _pair(text)
    return name, Path(value)


def _amount(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise ValueError(text)
    return value


def _out(text: str) -> Path:
    """A file to be written: that it cannot be is said before the work, not after it."""
    path = Path(text)
    if not text:
        raise InputError("a file without a name", hint="Name a file")
    if path.is_dir():
        raise InputError("this is a folder", where=text, hint="Name a file")
    if not path.parent.is_dir():
        raise InputError(
            f"the folder {str(path.parent)!r} does not exist", where=text, hint="Make it first"
        )
    return path


# Click shows it in the help, in capitals.
_out.__name__ = "file"

SIZE: Final = _parsed("size", parse_size, "bytes, such as 1073741824, 512M or 2GiB")
EXTENT: Final = _parsed("name=extent", _extent, "NAME=EXTENT, such as batch=1")
AMOUNT: Final = _parsed("number", _amount, "a number of at least 0")
FILE: Final = _parsed("name=file", _file, "NAME=FILE.npy, such as image=cat.npy")
PATH: Final = click.Path(path_type=Path)
FOLDER: Final = click.Path(path_type=Path, exists=True, file_okay=False)
OUT: Final = _out


@dataclass(frozen=True)
class CompileOptions:
    """What the command line says about compiling; None leaves it to the environment."""

    target: str = "cpu"
    mcpu: str = "native"
    threads: int | None = None
    strict: bool | None = None
    math: str = "strict"
    use_cache: bool = True
    memory_limit: int | None = None
    trust: bool = False
    external_data_root: tuple[Path, ...] = ()
    no_default: tuple[str, ...] = ()
    sanitize: bool = False
    dim: tuple[tuple[str, int], ...] = ()
    scales: Path | None = None
    description: str | None = None

    @property
    def dims(self) -> dict[str, int]:
        """Extents of symbolic dimensions by name."""
        return dict(self.dim)

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
            "threads": self.threads,
            "strict": self.strict,
            "math": self.math,
            "cache": None if self.use_cache else False,
            "memory_limit": self.memory_limit,
            "trust": self.trust,
            "sanitize": self.sanitize,
            "dims": self.dims or None,
        }


trust_option: Final = click.option(
    "--trust", is_flag=True, help="Read a .pt2 even if that can run code which it brings."
)

external_option: Final = click.option(
    "--external-data-root",
    multiple=True,
    type=FOLDER,
    help="A further folder that weights may lie in.",
)

_COMPILE: Final = (
    click.option("--target", default="cpu", show_default=True, help="Kind of machine."),
    click.option(
        "--mcpu", default="native", show_default=True, help="Processor: native, x86-64-v3, ..."
    ),
    click.option("--threads", type=click.IntRange(1, 1024), help="Default: what is really ours."),
    click.option(
        "--strict/--no-strict", default=None, help="Refuse operators without native code."
    ),
    click.option("--math", type=click.Choice(MATH), default="strict", show_default=True),
    click.option("--cache/--no-cache", "use_cache", default=True, help="The kernel cache on disk."),
    click.option("--memory-limit", type=SIZE, help="Refuse to need more; default: the machine's."),
    trust_option,
    external_option,
    click.option(
        "--no-default",
        multiple=True,
        metavar="NAME",
        help="An input that the model has a value for, which every call shall give.",
    ),
    click.option("--sanitize", is_flag=True, help="Check every access while the model runs."),
    click.option(
        "--dim", multiple=True, type=EXTENT, help="A symbolic dimension, as in --dim batch=8."
    ),
    click.option("--scales", type=PATH, help="For a machine of bytes: what quantize has written."),
    click.option(
        "--machine",
        "description",
        metavar="NAME|FILE",
        help="A file that describes the processor; for the npu also a name, such as wide.",
    ),
)


COMPILE: Final = tuple(field.name for field in fields(CompileOptions))


def compile_options(*names: str) -> Callable[[Verb], Verb]:
    """The options about compiling of these names, fields of CompileOptions, that a verb takes.

    The verb gets them as `options: CompileOptions`; the others keep their defaults.
    """

    def decorated(verb: Verb) -> Verb:
        @wraps(verb)
        def gathered(**values: Any) -> Any:
            chosen = CompileOptions(**{name: values.pop(name) for name in names})
            _check_machine(chosen)
            return verb(options=chosen, **values)

        rows = dict(zip(COMPILE, _COMPILE, strict=True))
        return _decorated(gathered, tuple(rows[name] for name in names))

    return decorated


def given() -> dict[str, str]:
    """The options that stand on the command line of the running verb: parameter to flag."""
    context = click.get_current_context()
    found = {}
    for option in context.command.params:
        name = option.name or ""
        said = context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        if said and isinstance(option, click.Option):
            off = option.secondary_opts and context.params[name] is False
            found[name] = max(option.secondary_opts if off else option.opts, key=len)
    return found


def refuse(names: Collection[str], why: str, hint: str, where: str | None = None) -> None:
    """Raise InputError where the command line gives one of these parameters: it has no effect.

    why: ends the message, behind the flags.
    """
    flags = [flag for name, flag in given().items() if name in names]
    if flags:
        raise InputError(f"{', '.join(flags)}: {why}", where=where, hint=hint)


def allow(names: Collection[str], why: str, hint: str, where: str | None = None) -> None:
    """Raise InputError, as `refuse`, for all given parameters but these."""
    refuse(given().keys() - set(names), why, hint, where)


def _check_machine(options: CompileOptions) -> None:
    """Raises InputError for options that the target's machines do not have."""
    if options.description is None and options.scales is None:
        return
    from tilewright.targets import registry

    for flag, value, able in (
        ("--machine", options.description, {*registry.networks(), *registry.described()}),
        ("--scales", options.scales, registry.quantisers()),
    ):
        if value is not None and options.target not in able:
            raise InputError(
                f"--target {options.target} does not take it",
                where=flag,
                hint=f"for --target {', '.join(sorted(able))}",
            )


_INPUTS: Final = (
    click.option("--input", "files", multiple=True, type=FILE, help="One input from a NumPy file."),
    click.option("--inputs", "archive", type=PATH, help="Inputs by name from an .npz file."),
    click.option(
        "--seed", default=0, show_default=True, type=click.IntRange(0), help="Of random inputs."
    ),
)


def input_options(verb: Verb) -> Verb:
    """Options about input data: `files`, `archive`, `seed`."""
    return _decorated(verb, _INPUTS)


json_option: Final = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, for machines."
)
model_argument: Final = click.argument("model", type=PATH)


def _decorated(verb: Verb, options: tuple[Callable[[Verb], Verb], ...]) -> Verb:
    for option in reversed(options):
        verb = option(verb)
    return verb
