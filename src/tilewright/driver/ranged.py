"""A model for the shapes of ranges: code for all of those of which planning says the same.

The plans of sizes are compared with one open plan (`generalize`). Where the combinations of extents
are few, all are compared. Where they are many, some are: ends, small extents, powers of two and
their neighbors, and others by chance; and of the graph itself it is shown that shapes and shape
arithmetic are the same affine functions at all sizes between (`between`), so that planning is about
the same graph there. That no access leaves a tensor is proven for all sizes either way.
Decisions that depend on costs are those of one size, the pattern. What does not agree has code of
its own: for a combination, or again for a range with one extent fixed.
"""

from __future__ import annotations

import math
import random
from collections.abc import (
    Callable,
    Collection,
    Hashable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from tilewright.base.errors import (
    InputError,
    MemoryLimitError,
    UnsupportedError,
    VerifyError,
)
from tilewright.compute.nodes import Computation
from tilewright.driver.between import Between
from tilewright.driver.generalize import difference, equal, generalize
from tilewright.driver.open_model import symbolic
from tilewright.driver.processes import share, workers
from tilewright.driver.ranges import combinations, count
from tilewright.driver.size_terms import (
    Extents,
    SizeTerm,
    Terms,
    every_floor,
    points_of,
    terms_of,
)
from tilewright.graph.infer import FallbackProvider, Typing
from tilewright.graph.nodes import Graph, Value
from tilewright.plan.nodes import Plan
from tilewright.plan.questions import Questions
from tilewright.runtime.dispatch import Allowed
from tilewright.runtime.model import CompiledModel
from tilewright.runtime.open_model import OpenModel
from tilewright.runtime.ranged_model import Cover, Key, RangedModel, Shared
from tilewright.runtime.threads import thread_count

ALONE: Final = 16  # combinations that have code of their own, at most
NAMED: Final = 4  # combinations of ranges that are few enough to have been named
TOGETHER: Final = 8  # ranges that share code, at most
COMPARED: Final = 256  # combinations that are all compared, at most
# Neighbors of the pattern that check what is divided.
CHECKED: Final = 4
SAMPLED: Final = 48  # combinations of more than those that are compared, about
# More of them, where conditions depend on what is divided.
DENSE: Final = 12
# Sizes after which all of a plan comes again, at most, where it has floors that the graph has not.
PERIOD: Final = 32
MakePlan = Callable[[Extents, "Questions | None"], Plan]


@dataclass(frozen=True, eq=False, slots=True)
class Making:
    """What makes plans and code of a graph.

    plan_at: the plan at extents by name; asked: answers in place of the target's. single: the model
    at extents by name. opened: the model of an open plan; None: there is none for such a target.
    typing_at: the types of the graph's values at extents by name; fallback: as it takes. meta: of
    the RangedModel.
    """

    graph: Graph
    real: Questions
    plan_at: MakePlan
    single: Callable[[Extents], CompiledModel]
    opened: Callable[[Plan], OpenModel] | None
    typing_at: Callable[[Extents], Typing]
    fallback: FallbackProvider | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Replayed:
    """Answers of a target about the pattern, given again for other sizes.

    They are found by the names of the Computations that are asked about; what was not asked of the
    pattern is asked of the target. Any answer gives a right plan, and only equal plans share code.
    """

    real: Questions
    answers: dict[Hashable, list[Any]] = field(default_factory=dict)
    recording: bool = True
    given: dict[Hashable, int] = field(default_factory=dict)

    def questions(self) -> Questions:
        """What passes ask, from the first question on.

        Blocks of keys divide one number of keys and not another: attention has none of them.
        """
        self.given = {}
        return Questions(
            lambda group, constants=(): self._answer(
                self.real.estimated_cost, group, constants
            ),
            lambda group: self._answer(self.real.is_profitable, group),
            replace(self.real.costs, key_block=1),
            self._decided,
        )

    def _decided(self, what: str, here: bool) -> bool:
        return bool(self._again(what, lambda: here))

    def _answer(
        self, ask: Callable[..., Any], group: Sequence[Computation], *more: Any
    ) -> Any:
        key = (ask is self.real.is_profitable, tuple(c.name for c in group))
        return self._again(key, lambda: ask(group, *more))

    def _again(self, key: Hashable, ask: Callable[[], Any]) -> Any:
        known = self.answers.setdefault(key, [])
        if self.recording:
            known.append(ask())
            return known[-1]
        if not known:
            return ask()
        times = self.given.get(key, 0)
        self.given[key] = times + 1
        return known[min(times, len(known) - 1)]


def ranged_model(
    making: Making,
    allowed: Allowed,
    deciding: Sequence[Value],
    memory_limit: int | None,
) -> RangedModel:
    """Code for every combination of extents that is allowed.

    deciding: inputs whose values decide shapes. Raises InputError and UnsupportedError (TW-JIT)
    naming what is without a limit, or needs too much code, MemoryLimitError for code that needs
    more than half of the limit in bytes.
    """
    _check_countable(making.graph, allowed, deciding)
    single: dict[Key, CompiledModel] = {}
    shared: list[Shared] = []
    for part in _parts(making, allowed):
        if isinstance(part, Shared):
            shared.append(part)
        else:
            single[part] = making.single(dict(zip(allowed, part, strict=True)))
        _check_few(single, shared)
    inputs, outputs = (
        tuple(map(symbolic, vs)) for vs in (making.graph.inputs, making.graph.outputs)
    )
    made = RangedModel(inputs, outputs, allowed, single, tuple(shared), making.meta)
    _check_memory(made, memory_limit)
    return made


def _parts(
    making: Making, allowed: Allowed, alone: int = ALONE
) -> Iterator[Key | Shared]:
    """Ranges that share code, and combinations that have their own; each combination once.

    Those that are named one by one have their own, and those of a range that is refused; alone:
    that many at most.
    """
    few = count(allowed) <= alone
    if making.opened is None or (few and _are_named(allowed)):
        yield from map(_key, combinations(allowed))
        return
    try:
        yield from list(_together(making, allowed))
    except UnsupportedError:
        if not few:
            raise
        yield from map(_key, combinations(allowed))


def _are_named(allowed: Allowed) -> bool:
    """Whether each combination was named, or a range is as short as a list."""
    ranges = {n: e for n, e in allowed.items() if isinstance(e, range)}
    return count(ranges) <= NAMED


def _together(making: Making, allowed: Allowed) -> Iterator[Key | Shared]:
    """As `_parts`, with code for ranges. Raises UnsupportedError where there is too little."""
    assert making.opened is not None
    plan, compared = open_plan(making, allowed)
    inside = _box(allowed, compared)
    many = count(allowed) > COMPARED
    agreed = [key for key, same in compared.items() if same]
    if count(allowed) <= ALONE and len(agreed) <= NAMED:
        yield from compared
        return
    if not many and len(compared) - len(agreed) <= ALONE:
        covers = Cover(tuple(allowed.values()), frozenset(compared) - {*agreed})
        yield Shared(making.opened(_within(plan, allowed, agreed)), covers)
        yield from covers.without
        return
    covers, odd = _cover(inside, compared)
    if many or len(odd) > ALONE:
        inside = _without_odd(inside, odd, _key(_start(allowed)))
        covers, odd = _cover(inside, compared)
    if odd and (many or len(odd) > ALONE):
        raise _differs(making, plan, dict(zip(allowed, max(odd), strict=True)))
    ends = [*combinations({n: (min(e), max(e)) for n, e in inside.items()})]
    within = _within(plan, allowed, [_key(e) for e in ends])
    yield Shared(making.opened(within), Cover(covers.extents, odd))
    yield from odd
    rests = list(_outside(allowed, inside))
    for rest in rests:
        yield from _parts(making, rest, ALONE // (1 + len(rests)))


def _within(plan: Plan, allowed: Allowed, keys: Collection[Key]) -> Plan:
    """The open plan for no other sizes than those between the least and the most of the keys."""
    found = {name: [k[n] for k in keys] for n, name in enumerate(allowed)}
    return replace(
        plan,
        open=tuple(
            replace(e, least=min(found[e.size.name]), most=max(found[e.size.name]))
            for e in plan.open
        ),
    )


def _key(extents: Extents) -> Key:
    return tuple(extents.values())


def _box(allowed: Allowed, compared: Mapping[Key, bool]) -> dict[str, Collection[int]]:
    """Of each dimension the extents around the pattern's between which all that were compared
    agree, where the other dimensions are as in the pattern."""
    start = _key(_start(allowed))
    found: dict[str, Collection[int]] = {}
    for axis, (name, extents) in enumerate(allowed.items()):
        line = {
            key[axis]: same
            for key, same in compared.items()
            if key[:axis] + key[axis + 1 :] == start[:axis] + start[axis + 1 :]
        }
        wrong = [n for n, same in line.items() if not same]
        below = max((n for n in wrong if n < start[axis]), default=-1)
        above = min((n for n in wrong if n > start[axis]), default=max(extents) + 1)
        right = [n for n, same in line.items() if same and below < n < above]
        if not right:
            raise _needs_own(dict(zip(allowed, start, strict=True)))
        ends = range(min(right), max(right) + 1)
        found[name] = (
            ends
            if isinstance(extents, range)
            else tuple(n for n in extents if n in ends)
        )
    return found


def _cover(
    inside: Allowed, compared: Mapping[Key, bool]
) -> tuple[Cover, frozenset[Key]]:
    """What is inside, and which of it does not agree."""
    covers = Cover(tuple(inside.values()), frozenset())
    odd = frozenset(k for k, same in compared.items() if k in covers and not same)
    return covers, odd


def _without_odd(
    inside: Allowed, odd: Collection[Key], start: Key
) -> dict[str, Collection[int]]:
    """The box cut at its ends until it holds the pattern and, where that suffices, no odd one."""
    left = {name: list(extents) for name, extents in inside.items()}
    for key in sorted(odd):
        if not all(n in e for n, e in zip(key, left.values(), strict=True)):
            continue
        for value, kept, extents in zip(key, start, left.values(), strict=True):
            if value != kept and value in (extents[0], extents[-1]):
                extents.remove(value)
                break
    return {
        name: range(e[0], e[-1] + 1) if isinstance(inside[name], range) else tuple(e)
        for name, e in left.items()
    }


def _outside(allowed: Allowed, inside: Allowed) -> Iterator[Allowed]:
    """What is allowed and not inside: parts with one dimension fixed, disjoint."""
    before: dict[str, Collection[int]] = {}
    names = list(allowed)
    for n, name in enumerate(names):
        after = {later: allowed[later] for later in names[n + 1 :]}
        left = [value for value in allowed[name] if value not in inside[name]]
        if len(left) > ALONE:
            raise _needs_own(
                {k: min(e) for k, e in allowed.items()} | {name: left[0]}, len(left)
            )
        for value in left:
            yield {**before, name: (value,), **after}
        before[name] = inside[name]


def open_plan(making: Making, allowed: Allowed) -> tuple[Plan, dict[Key, bool]]:
    """The open plan of a graph, and of combinations of extents whether their own plans equal it.

    A dimension with one extent is not a size of it. Raises UnsupportedError naming what differs
    between two sizes by more than numbers.
    """
    start = _start(allowed)
    opened = {name: e for name, e in allowed.items() if len(e) > 1}
    terms: Terms = {
        name: terms_of(making.typing_at, start, name, (min(e), max(e)), _at(e, 1))
        for name, e in opened.items()
    }
    replayed = Replayed(making.real)
    try:
        points = _points(allowed, terms)
        found = _opened(making, allowed, replayed, points, terms)
    except UnsupportedError:
        terms = {name: every_floor(known, PERIOD) for name, known in terms.items()}
        if all(len(known) == 1 for known in terms.values()):
            raise
        points = _dense(allowed, terms)
        replayed = Replayed(making.real)
        found = _opened(making, allowed, replayed, points, terms)

    def agrees(extents: Extents) -> bytes:
        try:
            fixed = making.plan_at(extents, replayed.questions())
            return bytes([equal(found, extents, fixed)])
        except (UnsupportedError, VerifyError):
            return bytes([False])

    wanted = _compared(allowed, points, terms)
    jobs = [partial(agrees, extents) for extents in wanted]
    answers = share(jobs, workers(len(jobs), thread_count()))
    compared = {
        # One that raised an error raises it again.
        _key(extents): bool((agrees(extents) if same is None else same)[0])
        for extents, same in zip(wanted, answers, strict=True)
    }
    if count(allowed) > COMPARED:
        told = [*points, {name: max(e) for name, e in allowed.items()}]
        known = [making.typing_at(point) for point in told]
        between = Between(making.graph, allowed, told, known, making.fallback, terms)
        for odd in between.odd():
            compared[_key({**points[0], **odd})] = False
    return found, compared


def _opened(
    making: Making,
    allowed: Allowed,
    replayed: Replayed,
    points: Sequence[Extents],
    terms: Terms,
) -> Plan:
    """The open plan through those at points and, where it has the same form, at the largest."""
    plans = []
    for point in points:
        plans.append(making.plan_at(point, replayed.questions()))
        replayed.recording = False
    largest = {name: max(e) for name, e in allowed.items()}
    bounds = {name: (min(allowed[name]), max(allowed[name])) for name in terms}
    own = [{name: point[name] for name in terms} for point in (*points, largest)]
    try:
        last = making.plan_at(largest, replayed.questions())
        return generalize([*plans, last], own, making.graph, bounds, terms)
    except UnsupportedError:  # the largest may have code of its own
        return generalize(plans, own[:-1], making.graph, bounds, terms)


def _differs(making: Making, plan: Plan, extents: Extents) -> UnsupportedError:
    """The error for an open plan that is right along each dimension alone, as one with a product
    of two sizes is."""
    what = difference(plan, extents, making.plan_at(extents, None))
    return UnsupportedError(
        f"one code for a range of sizes is not possible: at {extents}, {what} is another than in "
        "proportion to each size",
        code="TW-JIT",
        hint="give one of the dimensions a value, or name at most 16 combinations: "
        "dims={'batch': [1, 8]}",
    )


def _compared(
    allowed: Allowed, points: Sequence[Extents], terms: Terms
) -> list[Extents]:
    """All combinations, or some of many: along each dimension, at corners, and by chance.

    Of a dimension that is divided, also one with each remainder.
    """
    if count(allowed) <= COMPARED:
        return list(combinations(allowed))
    start = points[0]
    opened = [name for name, e in allowed.items() if len(e) > 1]
    found = list(points)
    for name in opened:
        values = _telling(allowed[name], SAMPLED // len(opened))
        period = math.lcm(*(t.divisor for t in terms[name]))
        if period > COMPARED:
            raise UnsupportedError(
                f"extents along {name} come again only after {period:,} sizes",
                code="TW-JIT",
                hint=f"name at most {COMPARED} combinations of extents",
            )
        beside = [start[name] + n for n in range(1, period)]
        values += [n for n in beside if n in allowed[name]]
        found += [{**start, name: value} for value in dict.fromkeys(values)]
    chance = random.Random(0)
    ends = {n: (min(e), max(e)) for n, e in allowed.items()}
    inner = {n: (sorted(e)[min(1, len(e) - 1)], max(e)) for n, e in allowed.items()}
    if len(opened) > 1:
        found += [*combinations(ends), *combinations(inner)]
        for _ in range(SAMPLED // 4):
            found.append({n: chance.choice(list(e)) for n, e in allowed.items()})
    return found


def _telling(extents: Collection[int], most: int) -> list[int]:
    """Extents at which plans change form, if anywhere: ends, small ones, about powers of two."""
    values = sorted(extents)
    wished = [values[0], values[-1], values[-2], *values[1:8]]
    for power in range(1, values[-1].bit_length() + 1):
        wished += [(1 << power) - 1, 1 << power, (1 << power) + 1]
    known = dict.fromkeys(n for n in wished if n in extents)
    chance = random.Random(len(values))
    while len(known) < min(most, len(values)):
        known[chance.choice(values)] = None
    return list(known)


def _start(allowed: Allowed) -> dict[str, int]:
    """The pattern: not at the end of a range, where a plan may have another form, as for an extent
    of 1."""
    return {name: _at(extents, 2) for name, extents in allowed.items()}


def _points(allowed: Allowed, terms: Terms) -> Sequence[Extents]:
    """The pattern, and for each dimension those that differ in it alone and tell its terms apart:
    one that is far, and neighbors; then some others that check what is divided."""
    start = _start(allowed)
    found: list[Extents] = [start]
    for name, known in terms.items():
        values = sorted(allowed[name])
        near = sorted(values, key=lambda n: abs(n - start[name]))
        found += points_of(start, known, [_at(values, 1), *near])
    divided = [name for name, known in terms.items() if len(known) > 1]
    others = {name: _other(allowed[name], terms[name], start) for name in divided}
    checks = [{**start, **others}, *_beside(allowed, divided, CHECKED)]
    return [*found, *(p for p in checks if p not in found)]


def _other(extents: Collection[int], terms: Sequence[SizeTerm], start: Extents) -> int:
    """An extent, not at an end, at which as many terms as possible are not what they are at the
    start: where that is so of several sizes, a sum of terms is no product."""
    (name,) = {t.size for t in terms}
    inner = sorted(extents)[1:-1] or sorted(extents)

    def changed(n: int) -> tuple[int, int]:
        here = sum(t.at({name: n}) != t.at(start) for t in terms)
        return here, -abs(n - start[name])

    return max(inner, key=changed)


def _dense(allowed: Allowed, terms: Terms) -> Sequence[Extents]:
    """More neighbors of the pattern, along each dimension that is divided and along all at once:
    with each remainder some."""
    divided = [name for name, known in terms.items() if len(known) > 1]
    alone = (p for name in divided for p in _beside(allowed, [name], DENSE))
    found = [*alone, *_beside(allowed, divided, DENSE)]
    return [*(p for p in _points(allowed, terms) if p not in found), *found]


def _beside(allowed: Allowed, names: Sequence[str], count: int) -> list[Extents]:
    """Neighbors of the pattern, with all the names' extents so much less or, where there is no
    room, more."""
    start = _start(allowed)
    found: list[Extents] = []
    for n in range(1, count + 1) if names else ():
        for away in (-n, n):
            beside = {name: start[name] + away for name in names}
            if all(value in allowed[name] for name, value in beside.items()):
                found.append({**start, **beside})
                break
    return found


def _at(extents: Collection[int], thirds: int) -> int:
    """An extent in the middle: of a wide range by ratios, so that it is not a rare one."""
    values = sorted(extents)
    if len(values) <= COMPARED:
        return values[min(len(values) * thirds // 3, len(values) - 1)]
    least = max(values[0], 1)
    wished = least * (values[-1] / least) ** (thirds / 3)
    return min(values, key=lambda n: abs(n - wished))


def _check_countable(graph: Graph, allowed: Allowed, deciding: Sequence[Value]) -> None:
    """Raise InputError or UnsupportedError (TW-JIT) unless all shapes are known."""
    if deciding:
        names = ", ".join(repr(v.name) for v in deciding)
        raise UnsupportedError(
            f"the values of {names} determine shapes, and are known only at run time",
            code="TW-JIT",
            hint="leave jit=False out, or make them initializers of the model",
        )
    for v in graph.inputs:
        open_dims = (None,) if v.shape is None else v.shape
        for d in open_dims if v.kind == "tensor" else ():
            if not isinstance(d, int) and d not in allowed:
                raise InputError(
                    f"{'a dimension without a name' if d is None else repr(d)} may have "
                    "any extent, and jit=False compiles none in a call",
                    code="TW-JIT",
                    where=f"input {v.name!r}",
                    hint="say which: dims={'batch': (1, 8)}",
                )


def _check_few(single: Mapping[Key, Any], shared: Sequence[Any]) -> None:
    if len(single) > ALONE or len(shared) > TOGETHER:
        raise UnsupportedError(
            f"over {ALONE} combinations of extents need code of their own, or over {TOGETHER} "
            "ranges of them",
            code="TW-JIT",
            hint="name fewer: dims={'batch': [1, 8, 64]}",
        )


def _needs_own(first: Extents, more: int | None = None) -> UnsupportedError:
    number = "" if more is None else f"{more} "
    return UnsupportedError(
        f"{number}combinations of extents need code of their own, {ALONE} at most can have it; "
        f"one is {dict(first)}",
        code="TW-JIT",
        hint="name fewer: dims={'batch': [1, 8, 64]}",
    )


def _check_memory(model: RangedModel, limit: int | None) -> None:
    blocks = {id(m.constants): len(m.constants) for m in model.models}
    total = sum(blocks.values()) + sum(m.arena_bytes for m in model.models)
    if limit is not None and total > limit // 2:
        raise MemoryLimitError(
            f"the code for all shapes needs {total:,} bytes, over half of the memory limit of "
            f"{limit:,}",
            hint="Raise --memory-limit, or name fewer extents",
        )
