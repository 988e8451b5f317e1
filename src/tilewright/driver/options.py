"""The options of a compilation, checked before anything is compiled."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from tilewright.base import flags, modes
from tilewright.base.errors import InputError
from tilewright.base.memory import memory_limit
from tilewright.base.numbers import whole
from tilewright.base.store import Store, default_store
from tilewright.runtime.threads import thread_count


@dataclass(frozen=True, slots=True)
class Options:
    """How to compile; the fields are the keyword arguments of `compile`."""

    target: str = "cpu"
    mcpu: str = "native"
    machine: str | Path | None = None
    threads: int | None = None
    fallback: str | None = None
    math: str = "default"
    cache: bool | None = None
    memory_limit: int | None = None
    trust: bool = False
    sanitize: bool = False
    inputs: Collection[str] = ()
    external_data_roots: Sequence[str | Path] = ()
    schedules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    description: Mapping[str, Any] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.mcpu == "native":
            object.__setattr__(self, "mcpu", flags.MCPU.get())
        file = flags.MACHINE.get() if self.machine is None else Path(self.machine)
        if file is not None:
            object.__setattr__(self, "machine", str(file))
            object.__setattr__(self, "description", read_description(file))
        if self.fallback is None:
            object.__setattr__(self, "fallback", flags.FALLBACK.get())
        _check_mode("math", self.math, modes.MATH)
        _check_mode("fallback", self.fallback, modes.FALLBACK)
        for name in ("threads", "memory_limit"):
            value = getattr(self, name)
            number = whole(value, 1)
            if value is not None and number is None:
                raise InputError(
                    f"{name}={value!r}", hint="give an integer of at least 1"
                )
            object.__setattr__(self, name, number)
        if isinstance(self.inputs, str) or not all(
            isinstance(n, str) for n in self.inputs
        ):
            raise InputError(
                f"inputs={self.inputs!r}", hint="give a list of names of inputs"
            )
        object.__setattr__(self, "inputs", tuple(sorted(set(self.inputs))))
        object.__setattr__(
            self, "external_data_roots", _folders(self.external_data_roots)
        )
        object.__setattr__(self, "schedules", _schedules(self.schedules))
        thread_count(self.threads)  # refuses a bad variable before anything is compiled

    @staticmethod
    def of(given: Mapping[str, Any]) -> Options:
        """The options given by name. Raises InputError for one that does not exist."""
        known = [f.name for f in fields(Options) if f.init]
        for name in given:
            if name not in known:
                raise InputError(
                    f"there is no option {name!r}",
                    hint=_replaced(name, given[name])
                    or f"choose from {', '.join(known)}",
                )
        return Options(**given)

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
        # What somebody trusted once is not found by who does not.
        switches = {"trust": self.trust, "sanitize": self.sanitize}
        lists = {"inputs": self.inputs, "external_data_roots": self.external_data_roots}
        given = {name: repr(value) for name, value in lists.items() if value}
        if self.description is not None:
            given["machine"] = repr(self.description)
        if self.schedules:
            given["schedules"] = json.dumps(self.schedules, sort_keys=True)
        return chosen | given | {name: "on" for name, on in switches.items() if on}

    @property
    def limit(self) -> int:
        """Bytes that the model may need."""
        return memory_limit(self.memory_limit)

    @property
    def store(self) -> Store | None:
        """The cache on disk, where it is to be used."""
        return None if self.cache is False else default_store()


def _check_mode(name: str, value: Any, known: Sequence[str]) -> None:
    """Raise InputError for a value that is not one of `known`."""
    if value not in known:
        hint = _replaced(name, value) or f"choose one of {', '.join(known)}"
        raise InputError(f"{name}={value!r}", hint=hint)


def _replaced(name: str, value: Any) -> str:
    """What to write instead of an option that was replaced; empty for any other."""
    shown = f'"{value}"' if isinstance(value, str) else repr(value)
    now = modes.REPLACED.get(f"{name}={shown}")
    return f"use {now}" if now else ""


def _schedules(given: Any) -> dict[str, dict[str, Any]]:
    """Parameters by kernel, as JSON has them. Raises InputError for anything else."""
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


_LARGEST_DESCRIPTION = 1 << 16  # bytes


def read_description(file: Path) -> Mapping[str, Any]:
    """What a machine description says, a TOML table; its fields are the target's to check.

    Raises InputError for a file that cannot be read as one.
    """
    try:
        with file.open("rb") as opened:
            text = opened.read(_LARGEST_DESCRIPTION + 1)
        if len(text) > _LARGEST_DESCRIPTION:
            raise ValueError(f"it has more than {_LARGEST_DESCRIPTION:,} bytes")
        return tomllib.loads(text.decode())
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"the machine description cannot be read: {error}",
            where=str(file),
            hint="give a TOML file such as python -m benchmarks.calibrate writes; "
            "the names of machines are for the NPU",
        ) from None


def _folders(roots: Any) -> tuple[str, ...]:
    """The folders, links resolved. Raises InputError for what is none."""
    several = isinstance(roots, Iterable) and not isinstance(roots, str)
    if not several or not all(isinstance(r, str | Path) for r in roots):
        raise InputError(
            f"external_data_roots={roots!r}", hint="give a list of folders"
        )
    for root in roots:
        if not Path(root).is_dir():
            raise InputError(
                "external_data_roots: it is not a folder",
                where=str(root),
                hint="check the path",
            )
    return tuple(str(Path(root).resolve()) for root in roots)
