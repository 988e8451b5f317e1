"""Inputs with defaults: a call that overrides them runs another variant of the model.

The model is compiled with the defaults as constants, which are folded and packed. A variant in
which some of them are inputs is compiled by the first call that passes exactly these, and cached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from tilewright.base.errors import InputError
from tilewright.base.text import listing

KEPT: Final = 16  # forms per executable


class Overrides:
    """The variants of one executable.

    layouts: name -> dtype and shape of each input with a default. origin: digest of the model that
    it was compiled from. compile: makes the variant in which the named ones are inputs; None if the
    model is no longer available.
    """

    def __init__(self, layouts: Mapping[str, str], origin: str) -> None:
        self.layouts: Final = layouts
        self.origin: Final = origin
        self.compile: Callable[[frozenset[str]], Any] | None = None
        self._kept: dict[frozenset[str], Any] = {}

    @staticmethod
    def of(meta: Mapping[str, Any]) -> Overrides:
        """Those that a compiled model, possibly an untrusted artifact, refers to."""
        found = meta.get("defaults")
        layouts = found if isinstance(found, dict) else {}
        return Overrides(
            {k: str(v) for k, v in layouts.items()}, str(meta.get("origin", ""))
        )

    def __str__(self) -> str:
        return listing([f"{name}: {layout}" for name, layout in self.layouts.items()])

    def form(self, given: Iterable[str]) -> Any:
        """What takes the inputs with defaults that are among `given`; None if none is.

        Raises InputError for an artifact, and what compiling raises.
        """
        names = frozenset(n for n in given if n in self.layouts)
        if not names:
            return None
        found = self._kept.get(names)
        if found is not None:
            return found
        if self.compile is None:
            shown = listing([repr(n) for n in sorted(names)])
            raise InputError(
                f"the value of {shown} is compiled into the artifact",
                hint=f"compile the model with inputs={sorted(names)}, and every call gives them",
            )
        while len(self._kept) >= KEPT:
            self._kept.pop(next(iter(self._kept)), None)
        return self._kept.setdefault(names, self.compile(names))

    def clear(self) -> None:
        """Forget all forms; they are compiled again when called."""
        self._kept.clear()
