"""Interdependent parameters, and the order in which they are decided."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.base.errors import InputError, TilewrightError
from tilewright.base.text import listing
from tilewright.tune.space.constraints import Constraint, Predicate
from tilewright.tune.space.formula import Given
from tilewright.tune.space.ranges import Range

RESERVED = "sketch"  # of a candidate's key


@dataclass(frozen=True, init=False)
class Parameter:
    """One decision: a range, and constraints that may read other parameters.

    constraints: declarative ones, or functions whose arguments are named like parameters. default:
    the value without tuning; if absent, the first value; if not possible, the nearest possible one.
    Functions must be pure: they are called once per combination of arguments.
    """

    name: str
    range: Range
    constraints: tuple[Constraint, ...]
    default: Any

    def __init__(
        self,
        name: str,
        range: Range,
        *constraints: Constraint | Callable[..., Any],
        default: Any = None,
    ) -> None:
        if not isinstance(name, str) or not name or name == RESERVED:
            raise InputError(
                f"{name!r} is not the name of a parameter",
                where="Parameter",
                hint=f'any text but "" and {RESERVED!r}',
            )
        made = [c if hasattr(c, "narrow") else Predicate(c) for c in constraints]
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "range", range)
        object.__setattr__(self, "constraints", tuple(made))
        object.__setattr__(self, "default", default)

    @property
    def reads(self) -> tuple[str, ...]:
        """The other parameters that its values depend on."""
        names = dict.fromkeys(self.range.names)
        for constraint in self.constraints:
            names.update(dict.fromkeys(constraint.names(self.name)))
        return tuple(names)

    def values(self, given: Given) -> Sequence[Any]:
        """The valid values in order, given the parameters that it reads.

        Raises InputError if a user's function fails for these values.
        """
        try:
            values = self.range.values(given)
            for constraint in self.constraints:
                values = constraint.narrow(self.name, values, given)
        except TilewrightError as error:
            raise error.at(f"parameter {self.name}") from error
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            at = listing([f"{name} = {given[name]!r}" for name in self.reads])
            raise InputError(
                f"{type(error).__name__}: {error}",
                where=f"parameter {self.name}",
                hint=f"its range and constraints are evaluated with {at or 'nothing'}",
            ) from error
        return values


@dataclass(frozen=True, slots=True)
class SpaceLevel:
    """A parameter in the order of decisions, above the independent groups decided after it.

    reads: what the parameter reads. context: the earlier parameters that it or a level below reads.
    """

    parameter: Parameter
    reads: tuple[str, ...]
    context: tuple[str, ...]
    below: tuple[SpaceLevel, ...]


def levels(parameters: Sequence[Parameter]) -> tuple[SpaceLevel, ...]:
    """The parameters as trees: those in different trees are independent.

    The same holds below each level: the remaining parameters split into independent groups once
    earlier decisions have cut all connections. (The pseudo-trees of AND/OR search, Dechter and
    Mateescu, 2007; ATF's groups are their roots.) Raises InputError for duplicate or unknown names,
    and for cyclic dependences.
    """
    by_name = {p.name: p for p in parameters}
    _check_names(parameters, by_name)
    reads = {p.name: set(p.reads) for p in parameters}
    _check_order(reads)
    return tuple(_tree(group, by_name, reads) for group in _apart(by_name, reads))


def _check_names(
    parameters: Sequence[Parameter], by_name: Mapping[str, Parameter]
) -> None:
    if len(by_name) < len(parameters):
        names = [p.name for p in parameters]
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(
            f"two parameters are named {twice}",
            where="Space",
            hint="rename one",
        )
    for p in parameters:
        for name in p.reads:
            if name not in by_name:
                raise InputError(
                    f"there is no parameter {name}",
                    where=f"parameter {p.name}",
                    hint=f"the parameters are {listing(list(by_name))}",
                )


def _check_order(reads: Mapping[str, set[str]]) -> None:
    left = dict(reads)
    while left:
        ready = [name for name, needed in left.items() if needed.isdisjoint(left)]
        if not ready:
            raise InputError(
                f"{' reads '.join(_circle(left))}",
                where="Space",
                hint="a parameter may only read those decided before it: move the constraint "
                "to the last one",
            )
        for name in ready:
            del left[name]


def _circle(left: Mapping[str, set[str]]) -> list[str]:
    path = [next(iter(left))]
    while path.count(path[-1]) == 1:
        path.append(min(left[path[-1]] & left.keys()))
    return path[path.index(path[-1]) :]


def _apart(names: Iterable[str], reads: Mapping[str, set[str]]) -> list[list[str]]:
    """Connected components of names, where an edge is one reading another; in order."""
    left = dict.fromkeys(names)
    near: dict[str, set[str]] = {name: set() for name in left}
    for name in left:
        for read in reads[name] & left.keys():
            near[name].add(read)
            near[read].add(name)
    groups: list[list[str]] = []
    while left:
        found: set[str] = set()
        stack = [next(iter(left))]
        while stack:
            name = stack.pop()
            if name not in found:
                found.add(name)
                stack += near[name]
        groups.append([name for name in left if name in found])
        for name in found:
            del left[name]
    return groups


def _tree(
    group: Sequence[str],
    by_name: Mapping[str, Parameter],
    reads: Mapping[str, set[str]],
) -> SpaceLevel:
    first = _first(group, reads)
    rest = [name for name in group if name != first]
    below = [_tree(part, by_name, reads) for part in _apart(rest, reads)]
    needed = dict.fromkeys(by_name[first].reads)
    read = tuple(needed)
    for level in below:
        needed.update(dict.fromkeys(level.context))
    needed.pop(first, None)
    return SpaceLevel(by_name[first], read, tuple(needed), tuple(below))


def _first(group: Sequence[str], reads: Mapping[str, set[str]]) -> str:
    """The decidable parameter that leaves the least context; the first among equals.

    The smaller the context of the rest, the more subtrees can be shared.
    """
    inside = set(group)
    ready = [name for name in group if reads[name].isdisjoint(inside)]

    def remembered(name: str) -> int:
        rest = inside - {name}
        return len(set().union(*(reads[r] for r in rest)) - rest)

    return min(ready, key=remembered)
