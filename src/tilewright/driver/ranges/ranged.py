"""A model for ranges of shapes: shared code for all shapes with equal plans.

The plans of sizes, all or some of them (`sample_points`), are compared with one open plan
(`generalize`). For the sizes between, `between` shows that the shapes and the shape arithmetic of
the graph are the same functions, so that planning sees the same graph. In either case, a proof for
all sizes shows that no access is out of bounds. Decisions that depend on costs are those for one
size, the pattern. Sizes whose plans differ get their own code: one combination, or again a range
with one extent fixed.
"""

from __future__ import annotations

import warnings
from collections.abc import (
    Callable,
    Collection,
    Hashable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import replace
from typing import Any, Final

from tilewright.base import events
from tilewright.base.dims_hint import FEWER, DimsHint, some_of
from tilewright.base.errors import (
    InputError,
    MemoryLimitError,
    ModelError,
    TilewrightError,
    TilewrightWarning,
    UnsupportedError,
)
from tilewright.driver.dims import (
    combinations,
    count,
    numbered,
    of_numbers,
    steps_of,
)
from tilewright.driver.ranges.compared_plans import (
    RangedBuilder,
    ReplayedQuestions,
    are_batches,
    key_of,
    open_plan,
)
from tilewright.driver.ranges.generalize import difference, form_of
from tilewright.driver.ranges.open_model import symbolic
from tilewright.driver.ranges.range_parts import (
    box_of,
    cover_of,
    of_one_form,
    outside,
    without_odd,
)
from tilewright.driver.ranges.refusals import alike_in, needs_own, not_affine
from tilewright.driver.ranges.sample_points import (
    corners,
    pattern,
    tries,
)
from tilewright.driver.ranges.size_terms import (
    Extents,
)
from tilewright.driver.ranges.step_hint import any_step
from tilewright.graph.nodes import Graph, Value
from tilewright.plan.nodes import Plan
from tilewright.runtime.dispatch import Allowed
from tilewright.runtime.model import CompiledModel
from tilewright.runtime.ranged_model import Cover, Key, RangedModel, SharedModel

ALONE: Final = 16  # most combinations with their own code
NAMED: Final = 4  # most combinations of ranges that count as named one by one
TOGETHER: Final = 12  # most ranges with shared code


def ranged_model(
    making: RangedBuilder,
    allowed: Allowed,
    deciding: Sequence[Value],
    memory_limit: int | None,
) -> RangedModel:
    """Code for every allowed combination of extents.

    deciding: inputs whose values determine shapes. Raises InputError or UnsupportedError (TW-JIT)
    naming an unlimited dimension, or a range that needs too much code; MemoryLimitError for code
    that needs more than half of the limit in bytes.
    """
    _check_countable(making.graph, allowed, deciding)
    try:
        single, shared = _all_code(making, allowed)
    except (ModelError, UnsupportedError) as error:
        form = _form_at(making, allowed) if making.opened else None
        step = any_step(making.typing_at, form, allowed)
        if step is not None:
            error.hint = step
        elif isinstance(error.hint, DimsHint) and not error.hint.flags:
            error.hint = error.hint.of(some_of(allowed))
        raise
    inputs, outputs = (
        tuple(map(symbolic, vs))
        for vs in (making.graph.inputs, making.graph.shown_outputs)
    )
    made = RangedModel(inputs, outputs, allowed, single, tuple(shared), making.meta)
    _check_memory(made, making.constants.size, memory_limit)
    return made.with_constants(making.constants.held())


Code = tuple[dict[Key, CompiledModel], list[SharedModel]]


def _all_code(making: RangedBuilder, allowed: Allowed) -> Code:
    """The code of single combinations, and shared code.

    Listed values that cannot share code as they are may do so by their numbers.
    """
    steps, with_lists = (steps_of(allowed, lists) for lists in (False, True))
    try:
        return _code_by(making, allowed, steps)
    except UnsupportedError:
        if steps == with_lists:
            raise
        making.constants.forget(0)
        return _code_by(making, allowed, with_lists)


def _code_by(
    making: RangedBuilder, allowed: Allowed, steps: Mapping[str, range]
) -> Code:
    single: dict[Key, CompiledModel] = {}
    shared: list[SharedModel] = []
    inner = making.on_numbers(steps)
    names = list(allowed)
    for part in _parts(inner, numbered(allowed, steps)):
        if isinstance(part, SharedModel):
            covers = _real_cover(allowed, steps, part.covers)
            shared.append(replace(part, covers=covers))
        else:
            single[_real_key(names, steps, part)] = inner.single(
                dict(zip(names, part, strict=True))
            )
        _check_few(single, shared)
    return single, shared


def _real_key(names: Sequence[str], steps: Mapping[str, range], key: Key) -> Key:
    return key_of(of_numbers(steps, dict(zip(names, key, strict=True))))


def _real_cover(allowed: Allowed, steps: Mapping[str, range], covers: Cover) -> Cover:
    """The cover of numbers as one of extents."""
    found: list[Collection[int]] = []
    for numbers, (name, extents) in zip(covers.extents, allowed.items(), strict=True):
        if name not in steps:
            found.append(numbers)
        elif isinstance(numbers, range) and isinstance(extents, range):
            found.append(extents[numbers[0] : numbers[-1] + 1])
        else:
            known = steps[name]
            found.append(tuple(known.start + known.step * n for n in numbers))
    without = (_real_key([*allowed], steps, key) for key in covers.without)
    return Cover(tuple(found), frozenset(without))


def _parts(
    making: RangedBuilder, allowed: Allowed, alone: int = ALONE
) -> Iterator[Key | SharedModel]:
    """Ranges with shared code, and combinations with their own code; each combination once.

    Combinations that are named one by one have their own code, and so have those of a range that
    cannot share code. alone: at most so many of them.
    """
    few = count(allowed) <= alone
    if making.opened is None or (few and _are_named(allowed)):
        yield from map(key_of, combinations(allowed))
        return
    before = making.constants.size
    try:
        yield from _together(making, allowed)
    except UnsupportedError as error:
        making.constants.forget(before)
        inside = _of_one_form(making, allowed)
        if inside is not None:
            yield from _split(making, allowed, inside, alone, error)
            return
        if not few:
            raise
        _tell_apart(making, allowed, str(error))
        yield from map(key_of, combinations(allowed))


def _split(
    making: RangedBuilder, allowed: Allowed, inside: Allowed, alone: int, why: Exception
) -> list[Key | SharedModel]:
    """As `_parts`, of a part of one form and of what is left. Raises `why` if that is too much."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        parts = (inside, *outside(allowed, inside))
        found: list[Key | SharedModel] = []
        try:
            for part in parts:
                found += _parts(making, part, alone)
                _check_few(
                    [k for k in found if isinstance(k, tuple)],
                    [s for s in found if isinstance(s, SharedModel)],
                )
        except UnsupportedError:
            if found and isinstance(why, UnsupportedError):
                why.hint = alike_in(inside, making.extents)
            raise why from None
    for warning in told:
        warnings.warn(warning.message, stacklevel=2)
    return found


def _of_one_form(making: RangedBuilder, allowed: Allowed) -> Allowed | None:
    """A part of the range in which plans have one form; None if that of all of it does not differ,
    some sizes are not valid, or so small parts would be too many."""
    try:
        inside = of_one_form(allowed, _form_at(making, allowed))
    except TilewrightError:
        return None
    if inside is None:
        return None
    most = {name: len(e) * TOGETHER for name, e in inside.items()}
    return inside if all(len(e) <= most[n] for n, e in allowed.items()) else None


def _form_at(making: RangedBuilder, allowed: Allowed) -> Callable[[Extents], Hashable]:
    """The form of the plan at extents, by the answers about the first of them."""
    opened = [name for name, e in allowed.items() if len(e) > 1]
    in_parts = are_batches(making.graph, opened)
    replayed = ReplayedQuestions(making.real, in_parts=in_parts)

    def form(extents: Extents) -> Hashable:
        plan = making.plan_at(extents, replayed.questions())
        replayed.recording = False
        return form_of(plan)

    return form


def _tell_apart(making: RangedBuilder, allowed: Allowed, why: str) -> None:
    """Say that the combinations of a range share no code, although nobody named them one by one."""
    codes = count(allowed)
    events.emit("range-apart", graph=making.graph.name, codes=codes, reason=why)
    warnings.warn(
        f"{codes} codes are compiled, one for each size, which share none: {why}",
        TilewrightWarning,
        stacklevel=2,
    )


def _are_named(allowed: Allowed) -> bool:
    """Whether each combination was named, or the ranges are as short as a list."""
    ranges = {n: e for n, e in allowed.items() if isinstance(e, range)}
    return count(ranges) <= NAMED


def _together(making: RangedBuilder, allowed: Allowed) -> list[Key | SharedModel]:
    """As `_parts`, with shared code. Raises UnsupportedError if too few sizes can share it."""
    before = making.constants.size
    *first, last = tries(allowed)
    for some in first:
        try:
            return list(_sharing(making, allowed, some))
        except UnsupportedError:
            making.constants.forget(before)
    return list(_sharing(making, allowed, last, apart=True))


def _sharing(
    making: RangedBuilder, allowed: Allowed, some: bool, apart: bool = False
) -> Iterator[Key | SharedModel]:
    """As `_together`, comparing some or all of the combinations. apart: many sizes that are left
    may share other code."""
    assert making.opened is not None
    found = open_plan(making, allowed, some)
    plan, compared = found.plan, found.equal
    inside = box_of(allowed, compared)
    if inside is None:
        first = key_of(pattern(allowed))
        raise needs_own(ALONE, *_what_differs(making, plan, allowed, first))
    agreed = [key for key, same in compared.items() if same]
    if count(allowed) <= ALONE and len(agreed) <= NAMED:
        _tell_apart(making, allowed, f"at most {len(agreed)} of them have equal plans")
        yield from compared
        return
    if not some and len(compared) - len(agreed) <= ALONE:
        covers = Cover(tuple(allowed.values()), frozenset(compared) - {*agreed})
        yield SharedModel(making.opened(_within(plan, allowed, agreed)), covers)
        yield from covers.without
        return
    covers, odd = cover_of(inside, compared)
    if some or len(odd) > ALONE:
        inside = without_odd(inside, odd, key_of(pattern(allowed)))
        if some:  # what is beside those that were cut away may differ, too
            found.compare(corners(inside))
        covers, odd = cover_of(inside, compared)
    if odd and (some or len(odd) > ALONE):
        raise not_affine(*_what_differs(making, plan, allowed, max(odd)))
    ends = [*combinations({n: (min(e), max(e)) for n, e in inside.items()})]
    within = _within(plan, allowed, [key_of(e) for e in ends])
    left = max(len(e) - len(inside[name]) for name, e in allowed.items())
    if left > ALONE and not apart:
        wrong = next(k for k, same in compared.items() if not same and k not in covers)
        raise needs_own(ALONE, *_what_differs(making, plan, allowed, wrong))
    rests = list(outside(allowed, inside))  # before anything is compiled
    yield SharedModel(making.opened(within), Cover(covers.extents, odd))
    yield from odd
    for rest in rests:
        yield from _parts(making, rest, ALONE // (1 + len(rests)))


def _within(plan: Plan, allowed: Allowed, keys: Collection[Key]) -> Plan:
    """The open plan, limited to sizes between the least and the greatest of the keys."""
    found = {name: [k[n] for k in keys] for n, name in enumerate(allowed)}
    return replace(
        plan,
        open=tuple(
            replace(e, least=min(found[e.size.name]), most=max(found[e.size.name]))
            for e in plan.open
        ),
    )


def _what_differs(
    making: RangedBuilder, plan: Plan, allowed: Allowed, key: Key
) -> tuple[str, Extents]:
    """What does between an open plan and that at a size, and the size."""
    at = dict(zip(allowed, key, strict=True))
    return difference(plan, at, making.plan_at(at, None)), making.extents(at)


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
                    "any extent, but jit=False compiles nothing during a call",
                    code="TW-JIT",
                    where=f"input {v.name!r}",
                    hint="give it a name in the model"
                    if d is None
                    else DimsHint("limit it").of({d: (1, 8)}),
                )


def _check_few(single: Collection[Key], shared: Sequence[Any]) -> None:
    if len(single) > ALONE or len(shared) > TOGETHER:
        raise UnsupportedError(
            f"over {ALONE} combinations of extents, or over {TOGETHER} ranges of extents, need "
            "separate code",
            code="TW-JIT",
            hint=DimsHint(FEWER),
        )


def _check_memory(model: RangedModel, constants: int, limit: int | None) -> None:
    total = model.needs(constants)
    if limit is not None and total > limit // 2:
        raise MemoryLimitError(
            f"the code for all shapes needs {total:,} bytes, over half of the memory limit of "
            f"{limit:,}",
            hint="raise memory_limit, or name fewer extents",
        )
