"""A model of several shapes: a call's arrays say which, and something runs it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NoReturn

import numpy as np

from tilewright.base.dims_hint import DimsHint
from tilewright.base.errors import InputError
from tilewright.base.text import plural
from tilewright.runtime.conditions import ExtentCondition, check_conditions
from tilewright.runtime.executable import Executable
from tilewright.runtime.inputs import PASS_INPUTS
from tilewright.runtime.model import SymbolicType, Tensor, listed
from tilewright.runtime.nesting import ArgumentNesting
from tilewright.runtime.overrides import Overrides

_RECENT: Final = 64  # sets of extents whose conditions are known to hold
UNLIMITED: Final = 2**62  # the end of a range without a greatest extent
Allowed = Mapping[str, Collection[int]]  # extents that a dimension may have, in order

_RENAME: Final = (
    "dimensions that may differ, or are broadcast, need different names in the model"
)


def show(extents: Collection[int]) -> str:
    """`1 to 64`, `at least 11`, `16 to 64 in steps of 16`, or `1, 8, 64`."""
    if isinstance(extents, range):
        steps = f" in steps of {extents.step}" if extents.step != 1 else ""
        if extents.stop > UNLIMITED:
            return f"at least {extents[0]}{steps}"
        return f"{extents[0]} to {extents[-1]}{steps}"
    return ", ".join(map(str, extents))


def nearest(extents: Collection[int], n: int) -> str:
    """`96 or 128`: the extents next to another one, below and above."""
    if isinstance(extents, range):  # it may be very long
        before = min(max((n - extents[0]) // extents.step, -1), len(extents) - 1)
        extents = extents[max(before, 0) : before + 2]
    below = max((e for e in extents if e < n), default=None)
    above = min((e for e in extents if e > n), default=None)
    return " or ".join(str(e) for e in (below, above) if e is not None)


class ShapeDispatch(ABC):
    """The interface of `Executable` over what `specialized` finds for the shapes of a call.

    allowed: the extents that dimensions may have, where they are limited. conditions: that they
    must satisfy together.
    """

    def __init__(
        self,
        inputs: Sequence[SymbolicType],
        outputs: Sequence[SymbolicType],
        nesting: ArgumentNesting | None,
        overrides: Overrides,
        allowed: Allowed,
        conditions: Sequence[ExtentCondition] = (),
    ) -> None:
        self.given: Final = tuple(inputs)
        self.made: Final = tuple(outputs)
        self.nesting: Final = nesting
        self.overrides: Final = overrides
        self.allowed: Final = allowed
        self.conditions: Final = tuple(conditions)
        self._passed: set[tuple[tuple[str, int], ...]] = set()

    @abstractmethod
    def specialized(self, inputs: Mapping[str, Any]) -> Executable:
        """The Executable for the shapes of these inputs."""

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Name, dtype and shape of each input; None for an extent known only at a call."""
        return tuple(v.tensor for v in self.given)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """Name, dtype and shape of each output."""
        return tuple(v.tensor for v in self.made)

    @property
    def defaults(self) -> Mapping[str, str]:
        """As `Executable.defaults`."""
        return self.overrides.layouts

    def __call__(self, *args: Any, out: Any = None, **named: Any) -> Any:
        """As `Executable.__call__`."""
        if self.nesting is None:
            found = self.run(self._named(args, named), out)
            return found[0] if len(found) == 1 else tuple(found)
        found = self.run(self.nesting.bind(args, named), out)
        return self.nesting.restore(
            {v.name: a for v, a in zip(self.made, found, strict=True)}
        )

    def run(self, feeds: Mapping[str, Any], out: Any = None) -> list[Any]:
        """As `Executable.run`."""
        given = self._named((), feeds)
        form = self.overrides.form(given)
        results: list[Any] = (form or self.specialized(given)).run(given, out)
        return results

    def profile(self, *args: Any, **options: Any) -> Any:
        """As `Executable.profile`, for the shapes of these inputs."""
        names = {v.name for v in self.given} | self.defaults.keys()
        if self.nesting is not None:
            names |= {name for name, _ in self.nesting.arguments}
        named = {k: options.pop(k) for k in list(options) if k in names}
        if self.nesting is None:
            given = self._named(args, named)
        else:
            given = self._named((), self.nesting.bind(args, named))
        form = self.overrides.form(given)
        return (form or self.specialized(given)).profile(given, **options)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a compiled model cannot be pickled: compile it in the other process"
        )

    def shapes_of(self, arrays: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        """The shapes of the inputs that have open extents, by name."""
        return {
            v.name: np.shape(arrays[v.name])
            for v in self.given
            if v.is_open and v.name in arrays
        }

    def extents(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
        """The extents of symbolic dimensions by name.

        Raises InputError naming the input whose shape does not fit, or the dimension with an
        extent that it may not have, or a condition that does not hold (TW-SIZE).
        """
        seen: dict[str, tuple[int, str]] = {}
        for v in self.given:
            got = shapes.get(v.name)
            if got is not None and v.shape is not None:
                _check_shape(v, got, seen)
        self._check_allowed(shapes)
        found = {name: n for name, (n, _) in seen.items()}
        if self.conditions:
            self._check_conditions(found)
        return found

    def _check_conditions(self, extents: Mapping[str, int]) -> None:
        """As `check_conditions`, once for the extents of recent calls."""
        key = tuple(extents.items())
        if key not in self._passed:
            check_conditions(self.conditions, extents)
            if len(self._passed) >= _RECENT:
                self._passed.clear()
            self._passed.add(key)

    def _check_allowed(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        for v in self.given:
            pairs = zip(v.shape or (), shapes.get(v.name, ()), strict=False)
            for axis, (d, n) in enumerate(pairs):
                if (
                    isinstance(d, str)
                    and d in self.allowed
                    and n not in self.allowed[d]
                ):
                    raise InputError(
                        f"{d} is {n}, and may be {show(self.allowed[d])}",
                        code="TW-SIZE",
                        where=f"input {v.name!r}, dimension {axis}",
                        hint=DimsHint(
                            f"give {nearest(self.allowed[d], n)}, or compile with others"
                        ).of({d: ...}),
                    )

    def _named(self, args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """The tensors of a call by name.

        Raises InputError for a name that no input has, or too many, before anything compiles.
        """
        only = args[0] if len(args) == 1 and not named else None
        if isinstance(only, Mapping):
            args, named = (), only
        names = [v.name for v in self.given]
        for name in named:
            if name not in names and name not in self.defaults:
                also = f", with defaults {self.overrides}" if self.defaults else ""
                raise InputError(
                    f"no input is called {name!r}: expected {listed(self.given)}{also}",
                    hint=PASS_INPUTS,
                )
        twice = [repr(n) for n in names[: len(args)] if n in named]
        if twice:
            raise InputError(f"input {twice[0]} is given by position and by name")
        if len(args) > len(names):
            raise InputError(
                f"{plural(len(args), 'input')} given, the model has {len(names)}",
                hint=PASS_INPUTS,
            )
        given = dict(zip(names, args, strict=False)) | dict(named)
        if missing := [v for v in self.given if v.name not in given]:
            raise InputError(f"missing inputs: {listed(missing)}", hint=PASS_INPUTS)
        return given


def _check_shape(
    v: SymbolicType, got: Sequence[int], seen: dict[str, tuple[int, str]]
) -> None:
    """One symbol has one extent in a call; `seen`: its extent and where it was seen first."""
    shape = v.shape or ()
    wrong = f"expected {v.layout}, got {list(got)}"
    where = f"input {v.name!r}"
    if len(got) != len(shape):
        raise InputError(wrong, where=where)
    for d, n in zip(shape, got, strict=True):
        known, first = (
            seen.setdefault(d, (n, v.name)) if isinstance(d, str) else (d, "")
        )
        if known is not None and known != n:
            hint = f"{d} is {known} in input {first!r}; {_RENAME}" if first else None
            raise InputError(wrong, where=where, hint=hint)
