"""What a compilation may be told, checked before anything is compiled."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tilewright.base import flags
from tilewright.base.errors import InputError
from tilewright.base.memory import memory_limit
from tilewright.base.numbers import whole
from tilewright.base.store import Store, default_store
from tilewright.runtime.threads import thread_count

MATH = ("strict", "exact", "fast")


@dataclass(frozen=True, slots=True)
class Options:
    """How to compile; the fields are the keyword arguments of `compile`."""

    target: str = "cpu"
    mcpu: str = "native"
    threads: int | None = None
    strict: bool | None = None
    math: str = "strict"
    cache: bool | None = None
    memory_limit: int | None = None
    trust: bool = False
    sanitize: bool = False
    inputs: Collection[str] = ()
    external_data_roots: Sequence[str | Path] = ()

    def __post_init__(self) -> None:
        if self.mcpu == "native":
            object.__setattr__(self, "mcpu", flags.MCPU.get())
        if self.math not in MATH:
            raise InputError(f"math={self.math!r}", hint=f"choose one of {', '.join(MATH)}")
        for name in ("threads", "memory_limit"):
            value = getattr(self, name)
            number = whole(value, 1)
            if value is not None and number is None:
                raise InputError(f"{name}={value!r}", hint="give an integer of at least 1")
            object.__setattr__(self, name, number)
        if isinstance(self.inputs, str) or not all(isinstance(n, str) for n in self.inputs):
            raise InputError(f"inputs={self.inputs!r}", hint="give a list of names of inputs")
        object.__setattr__(self, "inputs", tuple(sorted(set(self.inputs))))
        object.__setattr__(self, "external_data_roots", _folders(self.external_data_roots))
        thread_count(self.threads)  # refuses a bad variable before anything is compiled

    @staticmethod
    def of(given: Mapping[str, Any]) -> Options:
        """The options given by name. Raises InputError for one that does not exist."""
        known = [f.name for f in fields(Options)]
        for name in given:
            if name not in known:
                raise InputError(
                    f"there is no option {name!r}", hint=f"choose from {', '.join(known)}"
                )
        return Options(**given)

    @property
    def decisive(self) -> dict[str, str]:
        """The options that the compiled model depends on."""
        threads = str(thread_count(self.threads))
        chosen = {"target": self.target, "mcpu": self.mcpu, "math": self.math, "threads": threads}
        # What somebody trusted once is not found by who does not.
        switches = {"trust": self.trust, "sanitize": self.sanitize}
        lists = {"inputs": self.inputs, "external_data_roots": self.external_data_roots}
        given = {name: repr(value) for name, value in lists.items() if value}
        return chosen | given | {name: "on" for name, on in switches.items() if on}

    @property
    def limit(self) -> int:
        """Bytes that the model may need."""
        return memory_limit(self.memory_limit)

    @property
    def store(self) -> Store | None:
        """The cache on disk, where it is to be used."""
        return None if self.cache is False else default_store()


def _folders(roots: Any) -> tuple[str, ...]:
    """The folders, links resolved. Raises InputError for what is none."""
    several = isinstance(roots, Iterable) and not isinstance(roots, str)
    if not several or not all(isinstance(r, str | Path) for r in roots):
        raise InputError(f"external_data_roots={roots!r}", hint="give a list of folders")
    for root in roots:
        if not Path(root).is_dir():
            raise InputError(
                "external_data_roots: this is no folder", where=str(root), hint="check the path"
            )
    return tuple(str(Path(root).resolve()) for root in roots)
