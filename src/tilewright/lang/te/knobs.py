"""What a template's configuration decides: splits, orders, annotations, and values of any kind.

A knob is stated by `define_...`; its value is applied by `cfg[name].apply(s, tensor, axes)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, permutations, product
from math import prod
from typing import Any, ClassVar

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError, ScheduleError
from tilewright.base.numbers import ceil_div, divisors
from tilewright.lang.te.records import Handle
from tilewright.lang.te.schedule import Schedule


@dataclass(frozen=True, slots=True)
class VirtualAxis:
    """A loop that a knob will make: what later definitions name it by."""

    knob: str
    place: int


@dataclass(frozen=True, slots=True)
class Split:
    """A loop as several. size: iterations of each, outermost first."""

    size: tuple[int, ...]

    def apply(self, s: Schedule, op: Any, axis: Handle) -> list[Handle]:
        """Split the loop of a stage; the loops that it becomes."""
        made: list[Handle] = []
        for place in range(1, len(self.size)):
            outer, axis = s[op].split(axis, prod(self.size[place:]))
            made.append(outer)
        return [*made, axis]


@dataclass(frozen=True, slots=True)
class Reorder:
    """An order of loops. perm: for each loop in order, its index among the given ones."""

    perm: tuple[int, ...]

    def apply(self, s: Schedule, op: Any, axes: Sequence[Handle]) -> list[Handle]:
        """Reorder loops of a stage; the loops in their new order."""
        if len(axes) != len(self.perm):
            raise InputError(
                f"{len(axes)} loops given, {len(self.perm)} expected",
                where="Reorder.apply",
                hint="as many as define_reorder was given",
            )
        order = [axes[place] for place in self.perm]
        s[op].reorder(*order)
        return order


@dataclass(frozen=True, slots=True)
class Annotate:
    """How each of some loops runs: "none", "unroll", "vec" or "parallel"; or, of the policy
    `locate_cache`, the places of the loops that caches are computed at."""

    anns: tuple[Any, ...]

    VERBS: ClassVar[dict[str, str]] = {
        "unroll": "unroll",
        "vec": "vectorize",
        "parallel": "parallel",
    }

    def apply(
        self,
        s: Schedule,
        op: Any,
        axes: Sequence[Handle],
        axis_lens: Sequence[int] | None = None,
        max_unroll: int | None = None,
        vec_size: Sequence[int] | None = None,
        source: Sequence[Sequence[Any]] | None = None,
    ) -> list[Handle]:
        """Annotate loops of a stage; the loops.

        axis_lens: their lengths, which `max_unroll` and `vec_size` limit. source: for each place
        of `locate_cache` the tensors to compute there. Raises ScheduleError beyond a limit.
        """
        if source is not None:
            for tensors, place in zip(source, self.anns, strict=True):
                for tensor in tensors:
                    s[tensor].compute_at(s[op], axes[place])
            return list(axes)
        for place, ann in enumerate(self.anns):
            length = axis_lens[place] if axis_lens else None
            if ann == "unroll" and max_unroll and length and length > max_unroll:
                raise _limit(f"unrolls {length} iterations, more than {max_unroll}")
            if ann == "vec" and vec_size and length and length not in vec_size:
                raise _limit(f"makes vectors of {length}, none of {tuple(vec_size)}")
            if ann != "none":
                getattr(s[op], self.VERBS[ann])(axes[place])
        return list(axes)


@dataclass(frozen=True, slots=True)
class Knob:
    """A value of the user's own."""

    val: Any


Entity = Split | Reorder | Annotate | Knob


def _limit(what: str) -> ScheduleError:
    return ScheduleError(
        f"the configuration {what}",
        where="Annotate.apply",
        hint="take another configuration of the template's space",
    )


# ------------------------------------------------------------------------------ what is possible


def factors(left: int, policy: str, most: int | None) -> tuple[int, ...]:
    """Sizes of an inner loop where the loops inside it may have `left` iterations."""
    found: set[int] = set()
    if policy in ("factors", "verbose"):
        found.update(divisors(left))
    if policy in ("power2", "verbose"):
        found.update(1 << n for n in range(left.bit_length()))
    return tuple(sorted(f for f in found if most is None or f <= most))


def whole_size(length: int, inner: Sequence[int]) -> tuple[int, ...]:
    """The sizes of all loops: the outermost has what the inner ones leave."""
    return ceil_div(length, prod(inner)), *inner


def orders(
    count: int, policy: str, interval: tuple[int, int] | None
) -> list[tuple[int, ...]]:
    """The orders of `count` loops that a policy allows. Raises InputError for an unknown one."""
    every = tuple(range(count))
    if policy == "identity":
        return [every]
    if policy == "all":
        return list(permutations(every))
    if policy == "interval_all" and interval is not None:
        begin, end = interval
        return [
            every[:begin] + part + every[end:]
            for part in permutations(every[begin:end])
        ]
    raise unknown_policy(
        "define_reorder", policy, "identity, all, interval_all, candidate"
    )


def ways(count: int, policy: str, anchors: int | None) -> list[tuple[Any, ...]]:
    """The ways in which `count` loops may run under a policy: at most one of them is vectorized.

    A policy joins the words `none` (or `try`), `unroll`, `vec` and `parallel` by `_`.
    Raises InputError for an unknown one.
    """
    if policy == "locate_cache" and anchors is not None:
        return list(combinations(range(count), anchors))
    words = policy.replace("try", "none").split("_")
    known = {"none", *Annotate.VERBS}
    if not known.issuperset(words):
        raise unknown_policy(
            "define_annotate",
            policy,
            "locate_cache (with num_anchor=), try_unroll_vec, ...",
        )
    return [found for found in product(words, repeat=count) if found.count("vec") <= 1]


def unknown_policy(where: str, policy: object, known: str) -> InputError:
    """The error for a policy that there is not, or that lacks its arguments."""
    return InputError(
        f"there is no policy {policy!r}", where=where, hint=f"the policies are {known}"
    )
