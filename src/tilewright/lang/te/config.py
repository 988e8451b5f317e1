"""The configuration of a template: the knobs that it defines, and the values that it runs with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, TypeVar

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError, ScheduleError
from tilewright.base.numbers import whole
from tilewright.base.text import listing
from tilewright.lang.te.knobs import (
    Annotate,
    Entity,
    Knob,
    Reorder,
    Split,
    VirtualAxis,
    factors,
    orders,
    unknown_policy,
    ways,
    whole_size,
)
from tilewright.lang.te.syntax.nodes import Axis
from tilewright.tune.base import Candidate
from tilewright.tune.space import Parameter, ParameterSpace, Predicate, Set
from tilewright.tune.space.formula import BoundFormula, Given

E = TypeVar("E", bound=Entity)


@dataclass(frozen=True)
class _Inner:
    """Sizes of one of the loops that a split makes, given the sizes of the loops around it."""

    length: int
    policy: str
    most: int | None
    names: tuple[str, ...]

    def values(self, given: Given) -> Sequence[int]:
        taken = prod([given[name] for name in self.names])
        return factors(self.length // taken, self.policy, self.most)


@dataclass(frozen=True, slots=True)
class _Made:
    """A knob: its parameters, and the entity that their values make."""

    parameters: tuple[Parameter, ...]
    entity: Callable[..., Entity]


class Config:
    """The argument of a template: `define_...` declares a knob, `cfg[name]` is its value.

    values: of all parameters; None: the defaults, while definitions are collected.
    """

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self.flop = 0.0
        self._values = values
        self._knobs: dict[str, _Made] = {}
        self._entities: dict[str, Entity] = {}

    # ------------------------------------------------------------------------------ definitions

    def define_split(
        self,
        name: str,
        axis: Axis | int,
        policy: str = "factors",
        *,
        num_outputs: int = 2,
        max_factor: int | None = None,
        filter: Callable[[Split], bool] | None = None,
        candidate: Sequence[Sequence[int]] | None = None,
    ) -> list[VirtualAxis]:
        """A loop as `num_outputs` loops; `cfg[name].size` has their lengths, outermost first.

        policy: "factors": all divide; "power2": powers of two, with guards where they do not
        divide; "verbose": both; "candidate": the sizes of `candidate`, each of all loops (-1: what
        is left). max_factor: of all loops but the outermost. filter: sizes for which it is true.
        """
        length = _length(name, axis)
        if policy == "candidate" and candidate:
            sizes = [whole_size(length, tuple(size)[1:]) for size in candidate]
            self._choice(name, sizes, Split, filter)
            return _axes(name, len(sizes[0]))
        if policy not in ("factors", "power2", "verbose"):
            known = "factors, power2, verbose, candidate (with candidate=)"
            raise unknown_policy("define_split", policy, known)
        if whole(num_outputs, 2) is None:
            raise InputError(
                f"num_outputs is {num_outputs!r}",
                where=f"define_split {name}",
                hint="a split makes two loops or more",
            )
        names = tuple(f"{name}.{place}" for place in range(1, num_outputs))

        def entity(*inner: int) -> Split:
            return Split(whole_size(length, inner))

        rules: list[Predicate] = []
        if filter is not None:
            accepts = filter
            whole_split = BoundFormula(lambda *inner: accepts(entity(*inner)), names)
            rules.append(Predicate(whole_split))
        parameters = []
        for place, own in enumerate(names):
            sizes_of = _Inner(length, policy, max_factor, names[:place])
            of_last = rules if own == names[-1] else ()
            parameters.append(Parameter(own, sizes_of, *of_last))
        self._define(name, _Made(tuple(parameters), entity))
        return _axes(name, num_outputs)

    def define_knob(self, name: str, candidate: Sequence[Any]) -> None:
        """Any value of these: `cfg[name].val`."""
        self._choice(name, candidate, Knob, None)

    def define_reorder(
        self,
        name: str,
        axes: Sequence[Any],
        policy: str = "all",
        *,
        interval: tuple[int, int] | None = None,
        candidate: Sequence[Sequence[Any]] | None = None,
    ) -> list[VirtualAxis]:
        """An order of loops.

        policy: "identity", "all", "interval_all": all orders of those from `interval[0]` up to
        `interval[1]`; "candidate": the orders of `candidate`, each of the same loops.
        """
        if policy == "candidate" and candidate:
            found = [tuple(axes.index(x) for x in order) for order in candidate]
        else:
            found = orders(len(axes), policy, interval)
        self._choice(name, found, Reorder, None)
        return _axes(name, len(axes))

    def define_annotate(
        self,
        name: str,
        axes: Sequence[Any],
        policy: str,
        *,
        num_anchor: int | None = None,
    ) -> list[VirtualAxis]:
        """How loops run.

        policy: words out of none (try), unroll, vec and parallel, joined by `_`: each loop runs in
        one of these ways, at most one as vectors. "locate_cache": `num_anchor` loops to compute
        caches at.
        """
        found = ways(len(axes), policy, num_anchor)
        self._choice(name, found, Annotate, None)
        return _axes(name, len(axes))

    def constrain(self, names: Sequence[str], holds: Callable[..., bool]) -> None:
        """Only configurations for which `holds` is true; it is given the values of these knobs.

        cfg.constrain(["tile_y", "tile_x"], lambda y, x: y.size[-1] * x.size[-1] <= 256)
        """
        made = [self._knob(name) for name in names]
        read = tuple(p.name for knob in made for p in knob.parameters)

        def accepts(*values: Any) -> bool:
            left = iter(values)
            taken = [
                knob.entity(*[next(left) for _ in knob.parameters]) for knob in made
            ]
            return holds(*taken)

        last = max(names, key=list(self._knobs).index)
        knob = self._knobs[last]
        *rest, own = knob.parameters
        rules = (*own.constraints, Predicate(BoundFormula(accepts, read)))
        narrowed = Parameter(own.name, own.range, *rules, default=own.default)
        self._knobs[last] = _Made((*rest, narrowed), knob.entity)

    def add_flop(self, flop: float) -> None:
        """Operations that one run of the program takes, for rates."""
        self.flop += float(flop)

    def raise_error(self, message: str) -> None:
        """Refuse this configuration. Raises ScheduleError."""
        raise ScheduleError(
            message,
            where="template",
            hint="take another configuration of the template's space",
        )

    # ------------------------------------------------------------------------------ values

    def __getitem__(self, name: str) -> Any:
        """The value of a knob: a Split, a Reorder, an Annotate or a Knob."""
        self._knob(name)
        return self._entities[name]

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Those of all knobs defined so far."""
        return tuple(p for knob in self._knobs.values() for p in knob.parameters)

    def _knob(self, name: str) -> _Made:
        if name not in self._knobs:
            known = listing(list(self._knobs)) or "none"
            raise InputError(
                f"there is no knob {name!r}",
                where="template",
                hint=f"there are {known}",
            )
        return self._knobs[name]

    def _choice(
        self,
        name: str,
        found: Sequence[Any],
        entity: Callable[[Any], E],
        accepts: Callable[[E], bool] | None,
    ) -> None:
        values = [v for v in found if accepts is None or accepts(entity(v))]
        parameter = Parameter(name, Set(*values))
        self._define(name, _Made((parameter,), entity))

    def _define(self, name: str, knob: _Made) -> None:
        if name in self._knobs:
            raise InputError(
                f"two knobs are called {name}",
                where="template",
                hint="name one differently",
            )
        space = ParameterSpace(*knob.parameters)
        if self._values is None:
            values = space.default().values
        else:
            values = _own(name, space, self._values)
        self._knobs[name] = knob
        self._entities[name] = knob.entity(*[values[p.name] for p in knob.parameters])


def _own(
    name: str, space: ParameterSpace, values: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The knob's values. Raises ScheduleError if it differs from its first definition."""
    own = {p.name: values[p.name] for p in space.parameters if p.name in values}
    if Candidate("", own) not in space:
        raise ScheduleError(
            f"the knob {name} is defined otherwise here than in the template's default run",
            where="template",
            hint="a definition may not depend on the values of other knobs: state that by "
            "cfg.constrain",
        )
    return own


def _length(name: str, axis: Any) -> int:
    length = whole(axis.extent if isinstance(axis, Axis) else axis, 1)
    if length is None:
        raise InputError(
            f"{axis!r} has no length that is known",
            where=f"define_split {name}",
            hint="give an axis of constant extent, or its length",
        )
    return length


def _axes(name: str, count: int) -> list[VirtualAxis]:
    return [VirtualAxis(name, place) for place in range(count)]
