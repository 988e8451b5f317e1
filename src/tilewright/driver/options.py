"""The options of a compilation, checked before anything is compiled."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tilewright.base import flags, modes
from tilewright.base.arguments import ARGUMENTS, expect, expect_choice
from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError, UnsupportedError
from tilewright.base.memory import machine_memory, memory_limit
from tilewright.base.numbers import whole
from tilewright.base.store import FileStore, default_store
from tilewright.base.text import nearest, reason
from tilewright.runtime.threads import thread_count
from tilewright.tune.records.current import current
from tilewright.tune.records.published import NOTHING, PublishedChoices, default_path

if TYPE_CHECKING:
    from tilewright.targets.base import Calibration


@dataclass(frozen=True, slots=True)
class Options:
    """How to compile; the fields are the keyword arguments of `compile`."""

    target: str = "cpu"
    mcpu: str = "native"
    machine: str | Path | None = None
    threads: int | None = None
    fallback: str | None = None
    math: str = "default"
    precision: str | None = None
    cache: bool | None = None
    memory_limit: int | None = None
    trust: bool = False
    sanitize: bool = False
    fusion: bool = True
    optimize: str = "fast"
    inputs: Collection[str] = ()
    external_data_roots: Sequence[str | Path] = ()
    schedules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    samples: Sequence[Mapping[str, Any]] = ()
    scales: Mapping[str, Any] | str | Path | None = None
    by: str | None = None
    records: bool | str | Path | None = None
    dynamic_shapes: Any = None
    jit: bool = True
    published: PublishedChoices = field(init=False, default=NOTHING)
    description: Mapping[str, Any] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        expect(**{f.name: getattr(self, f.name) for f in _TYPED})
        if self.mcpu == "native":
            object.__setattr__(self, "mcpu", flags.MCPU.get())
        file = flags.MACHINE.get() if self.machine is None else Path(self.machine)
        if file is not None:
            object.__setattr__(self, "machine", str(file))
            if not self._names_machine:
                object.__setattr__(self, "description", read_description(file))
        if self.fallback is None:
            object.__setattr__(self, "fallback", flags.FALLBACK.get())
        _check_mode("math", self.math, modes.MATH)
        _check_mode("fallback", self.fallback, modes.FALLBACK)
        _check_mode("optimize", self.optimize, modes.OPTIMIZE)
        if self.precision is not None:
            self._check_precision()
        for name in ("threads", "memory_limit"):
            object.__setattr__(self, name, whole(getattr(self, name)))
        object.__setattr__(self, "inputs", tuple(sorted(set(self.inputs))))
        object.__setattr__(
            self, "external_data_roots", _folders(self.external_data_roots)
        )
        object.__setattr__(self, "schedules", _schedules(self.schedules))
        object.__setattr__(self, "aliases", _aliases(self.aliases))
        if isinstance(self.scales, str | Path):
            object.__setattr__(self, "scales", read_scales(Path(self.scales)))
        elif self.scales is not None:
            object.__setattr__(self, "scales", checked_scales(self.scales))
        object.__setattr__(self, "published", _published(self.records))
        thread_count(self.threads)  # rejects an invalid variable before compiling

    def _check_precision(self) -> None:
        """Raise InputError or UnsupportedError for a precision that is not available."""
        _check_mode("precision", self.precision, modes.PRECISION)
        if self.math == "exact":
            raise InputError(
                f'precision={self.precision!r} rounds factors, but math="exact" forbids rounding',
                hint="leave one of them out",
            )
        if self.precision not in modes.PRECISIONS.get(self.target, ()):
            able = (
                t for t, found in modes.PRECISIONS.items() if self.precision in found
            )
            raise UnsupportedError(
                f"precision={self.precision!r}: target {self.target!r} has no such mode",
                hint=f'compile for target="{next(able)}", or leave precision out',
            )

    @property
    def _names_machine(self) -> bool:
        """Whether machines of the target have names."""
        if self.target == "cpu":  # the usual case, for which no target is loaded
            return False
        from tilewright.targets import registry

        return registry.machines(self.target) == "name"

    @property
    def named_machine(self) -> str | None:
        """The name of the target's machine, if its machines have names."""
        given = self.machine is not None and self.description is None
        return str(self.machine) if given else None

    @staticmethod
    def of(given: Mapping[str, Any]) -> Options:
        """The options given by name. Raises InputError for one that does not exist."""
        known = [f.name for f in fields(Options) if f.init]
        for name in given:
            if name not in known:
                alike = nearest(name, known)
                near = f"did you mean {alike!r}? " if alike else ""
                raise InputError(
                    f"there is no option {name!r}",
                    hint=_replaced(name, given[name])
                    or f"{near}choose from {', '.join(known)}",
                )
        return Options(**given)

    @property
    def for_one_shape(self) -> bool:
        """Whether an option is set that code for many shapes does not support."""
        return (
            self.target != "cpu"
            or self.optimize not in modes.UNSEARCHED
            or bool(self.schedules or self.aliases)
        )

    @property
    def decisive(self) -> dict[str, str]:
        """The options that the compiled model depends on."""
        threads = str(thread_count(self.threads))
        chosen = {
            "target": self.target,
            "mcpu": self.mcpu,
            "math": self.math,
            "threads": threads,
        }
        # A model that was loaded with trust=True is not found without it.
        switches = {
            "trust": self.trust,
            "sanitize": self.sanitize,
            "no-jit": not self.jit,
        }
        lists = {"inputs": self.inputs, "external_data_roots": self.external_data_roots}
        given = {name: repr(value) for name, value in lists.items() if value}
        if self.precision is not None:
            given["precision"] = self.precision
        if self.machine is not None:
            given["machine"] = repr(self.description or self.machine)
        if self.scales is not None:
            given["scales"] = json.dumps(self.scales, sort_keys=True)
        if self.samples:
            given["samples"] = f"{self.by} {_digest(self.samples)}"
        if self.schedules:
            given["schedules"] = json.dumps(self.schedules, sort_keys=True)
        if self.aliases:
            given["aliases"] = json.dumps(self.aliases, sort_keys=True)
        if self.limit < machine_memory():
            given["memory_limit"] = str(self.limit)
        if self.published.digest:
            given["records"] = self.published.digest
        if not self.fusion:
            given["fusion"] = "off"
        if self.optimize != "fast":
            given["optimize"] = self.optimize
        return chosen | given | {name: "on" for name, on in switches.items() if on}

    def expect_calibration(self, target: str, quantizes: bool) -> None:
        """Raise InputError for samples or scales that would have no effect.

        quantizes: whether the target of that name uses them.
        """
        if self.scales is not None and (self.samples or self.by is not None):
            raise InputError(
                "samples and by cannot be combined with scales",
                hint="scales are made from samples: give only one of both",
            )
        named = ("samples", "scales", "by")
        given = [name for name in named if getattr(self, name) not in (None, ())]
        if given and not quantizes:
            raise InputError(
                f"{', '.join(given)}: target {target!r} does not quantize models",
                hint='leave it out, or compile for target="vta"',
            )

    @property
    def calibration(self) -> Calibration:
        """The samples or scales to quantize the model with."""
        from tilewright.targets.base import Calibration

        if not isinstance(self.scales, Mapping):
            return Calibration(tuple(self.samples), by=self.by or "shift")
        return Calibration(scales=self.scales["scales"], by=self.scales["by"])

    @property
    def limit(self) -> int:
        """The memory limit of the model, in bytes."""
        return memory_limit(self.memory_limit)

    @property
    def store(self) -> FileStore | None:
        """The cache on disk; None if it is off."""
        return None if self.cache is False else default_store()


# The options whose types and bounds the table of arguments has.
_TYPED: Final = tuple(f for f in fields(Options) if f.init and f.name in ARGUMENTS)


def _published(records: Any) -> PublishedChoices:
    """The best choices of the given records.

    Raises InputError for a file that does not exist.
    """
    if records is False:
        return NOTHING
    if records is None:
        path = default_path()
        return NOTHING if path is None else current(path)
    if not isinstance(records, str | Path):
        raise InputError(
            f"records={records!r}", hint="give a file of tuning records, or False"
        )
    if not Path(records).is_file():
        raise InputError(
            "there are no tuning records", where=str(records), hint="check the path"
        )
    return current(Path(records))


def _check_mode(name: str, value: Any, known: Sequence[str]) -> None:
    """Raise InputError for a value that is not one of `known`."""
    expect_choice(name, value, known, _replaced(name, value))


def _replaced(name: str, value: Any) -> str:
    """A hint to use the option that replaced this one; empty for any other."""
    shown = f'"{value}"' if isinstance(value, str) else repr(value)
    now = modes.REPLACED.get(f"{name}={shown}")
    return f"use {now}" if now else ""


def _schedules(given: Any) -> dict[str, dict[str, Any]]:
    """Parameters by kernel, as in JSON. Raises InputError for anything else."""
    try:
        found = json.loads(json.dumps(given))
    except (TypeError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(
        isinstance(v, dict) for v in found.values()
    ):
        raise InputError(
            f"schedules={given!r}",
            hint='give parameters by kernel, such as {"matmul": {"matmul.tile": (4, 2)}}',
        )
    return found


def _aliases(given: Any) -> dict[str, str]:
    """Inputs by output. Raises InputError for anything else, or an input with two outputs."""
    names = [*given, *given.values()] if isinstance(given, Mapping) else [None]
    if not all(isinstance(name, str) for name in names):
        raise InputError(
            f"aliases={given!r}",
            hint='give inputs by output, such as {"present": "past"}',
        )
    if len(set(given.values())) < len(given):
        raise InputError(
            f"aliases={given!r}: two outputs cannot share an input",
            hint="give each output its own input",
        )
    return dict(given)


def _digest(samples: Sequence[Mapping[str, Any]]) -> str:
    """A digest of the samples."""
    import numpy as np

    found = hashlib.sha256()
    for sample in samples:
        for name in sorted(sample):
            array = np.ascontiguousarray(sample[name])
            found.update(f"{name} {array.dtype} {array.shape} ".encode())
            found.update(array.tobytes())
    return found.hexdigest()


def read_scales(file: Path) -> dict[str, Any]:
    """Read `scales` and `by` from a file of `tilewright quantize`. Raises InputError for others."""
    try:
        return checked_scales(json.loads(file.read_text()))
    except (OSError, ValueError, RecursionError, InputError) as error:
        why = error.message if isinstance(error, InputError) else str(error)
        raise InputError(
            f"this is not a file of scales: {why}",
            where=str(file),
            hint="tilewright quantize writes such files",
        ) from None


def checked_scales(found: Any) -> dict[str, Any]:
    """Scales by tensor, and the method of rescaling sums. Raises InputError for anything else."""
    try:
        if not isinstance(found, Mapping):
            raise TypeError(f"a {type(found).__name__}")
        units = {str(name): float(unit) for name, unit in found["scales"].items()}
        return {"scales": units, "by": str(found["by"])}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"scales: {error!r}",
            hint='give {"by": "shift", "scales": {tensor: number}}, as quantize writes it',
        ) from None


_LARGEST_DESCRIPTION = 1 << 16  # bytes


def read_description(file: Path) -> Mapping[str, Any]:
    """Read a machine description, a TOML table; the target checks its fields.

    Raises InputError for a file that cannot be read as TOML.
    """
    try:
        with file.open("rb") as opened:
            text = opened.read(_LARGEST_DESCRIPTION + 1)
        if len(text) > _LARGEST_DESCRIPTION:
            raise ValueError(f"it has more than {_LARGEST_DESCRIPTION:,} bytes")
        return tomllib.loads(text.decode())
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"the machine description cannot be read: {reason(error)}",
            where=str(file),
            hint="give a TOML file such as python -m benchmarks.calibrate writes; "
            "the names of machines are for the NPU",
        ) from None


def _folders(roots: Any) -> tuple[str, ...]:
    """The folders, with links resolved. Raises InputError for anything else."""
    several = isinstance(roots, Iterable) and not isinstance(roots, str)
    if not several or not all(isinstance(r, str | Path) for r in roots):
        raise InputError(
            f"external_data_roots={roots!r}", hint="give a list of folders"
        )
    for root in roots:
        if not Path(root).is_dir():
            raise InputError(
                "external_data_roots: this is not a folder",
                where=str(root),
                hint="check the path",
            )
    return tuple(str(Path(root).resolve()) for root in roots)
