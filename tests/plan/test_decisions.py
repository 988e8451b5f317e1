"""Alternatives that are named: used whatever they cost, if all else permits them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tilewright.base import events
from tilewright.base.dtypes import float32
from tilewright.compute.build import map_, padded, reduce_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer, const
from tilewright.graph.nodes import Graph, Value
from tilewright.plan.decisions import (
    APART,
    BY_ESTIMATE,
    COPIED,
    DECISIONS,
    GUARDED,
    HALO,
    IN_PLACE,
    POOLING,
    SIBLINGS,
    STORED,
    TOGETHER,
    OneAlternative,
    PlanSite,
    SiteSurvey,
    chooses,
    estimated,
    site_of,
)
from tilewright.plan.nodes import FusionGroup, Plan
from tilewright.plan.passes.concat_in_place import concat_in_place
from tilewright.plan.passes.halo import add_halos
from tilewright.plan.passes.pooling import pool_in_blocks
from tilewright.plan.passes.siblings import merge_siblings
from tilewright.targets.registry import target

COSTS = target("cpu", "x86-64-v3").plan_costs
X, Y = (Buffer(n, (6, 24), float32) for n in "xy")
S, T = (Buffer(n, (6,), float32) for n in "st")


def stage(*computations: Computation) -> FusionGroup:
    names = tuple(c.name for c in computations)
    return FusionGroup("+".join(names), computations, names)


def total(out: Buffer, x: Buffer = X, op: str = "add") -> FusionGroup:
    return stage(reduce_(f"{op}_{out.name}", out, (24,), op, lambda i, k: x[i, k]))


IMAGE = Buffer("image", (10, 8, 3), float32)
W = Buffer("w", (3, 3, 3, 4), float32)
MADE, SMALL = Buffer("made", (8, 6, 4), float32), Buffer("small", (4, 3, 4), float32)
AROUND = Buffer("around", MADE.shape, float32)
V = Buffer("v", (3, 3, 4, 4), float32)
CONV = stage(
    reduce_(
        "conv", MADE, (3, 3, 3), "add",
        lambda i, j, c, m, n, k: IMAGE[i + m, j + n, k] * W[m, n, k, c],
    )
)  # fmt: skip
POOL = stage(
    reduce_(
        "pool", SMALL, (2, 2), "max",
        lambda i, j, c, m, n: MADE[i * 2 + m, j * 2 + n, c],
    )
)  # fmt: skip
NEXT = stage(
    reduce_(
        "next", AROUND, (3, 3, 4), "add",
        lambda i, j, c, m, n, k: (
            padded(MADE, (i + m - 1, j + n - 1, k), 0.0) * V[m, n, k, c]
        ),
    )
)  # fmt: skip


def free(group: Sequence[Computation], constants: Collection[Buffer] = ()) -> float:
    """One kernel takes as long as any other."""
    return 1.0


def dear(group: Sequence[Computation], constants: Collection[Buffer] = ()) -> float:
    """One kernel takes longer than several."""
    return float(len(group) ** 2) + (len(group[0].outputs) - 1) * 9


def unable(
    group: Sequence[Computation], constants: Collection[Buffer] = ()
) -> float | None:
    """Several results, or Computations, are nothing for the target."""
    return 1.0 if len(group) == len(group[0].outputs) == 1 else None


def always(alternative: str) -> Callable[..., str]:
    return lambda groups, usual, tensor=None: alternative


def siblings(cost: Any, named: str) -> int:
    given = [total(S), total(T, op="max")]
    return len(merge_siblings(given, (), cost, COSTS, always(named)))


def pooled(cost: Any, named: str, keep: Sequence[Buffer] = ()) -> int:
    return len(pool_in_blocks([CONV, POOL], (*keep, SMALL), {W}, cost, always(named)))


def haloed(most: float, named: str, keep: Sequence[Buffer] = ()) -> int:
    return len(add_halos([CONV, NEXT], {*keep, AROUND}, most, None, always(named)))


@pytest.mark.parametrize("merge", [siblings, pooled])
def test_one_kernel_that_is_named_is_made_whatever_it_costs(merge: Any) -> None:
    assert merge(dear, APART) == 2
    assert merge(dear, TOGETHER) == 1
    assert merge(free, TOGETHER) == 1
    with events.record() as log:
        assert merge(free, APART) == 2
    said = {e.fields["reason"] for e in log if e.kind == "not-fused"}
    assert said == {"they were measured to be faster apart"}


@pytest.mark.parametrize("merge", [siblings, pooled])
def test_a_kernel_that_the_target_cannot_make_is_not_made(merge: Any) -> None:
    assert merge(unable, TOGETHER) == 2


def test_the_other_conditions_hold_for_what_is_named() -> None:
    """What the second reads is written between; others use the convolution's results."""
    between = stage(map_("again", X, lambda i, j: Y[i, j]))
    steps = [total(S), between, total(T, op="max")]
    assert merge_siblings(steps, (), free, COSTS, always(TOGETHER))[0] is steps[0]
    assert pooled(free, TOGETHER, [MADE]) == 2
    assert haloed(9.0, STORED, [MADE]) == 2


def test_padding_is_stored_as_named() -> None:
    assert haloed(9.0, STORED) == 3
    assert haloed(9.0, GUARDED) == 2
    assert haloed(0.0, STORED) == 3
    assert haloed(0.0, GUARDED) == 2


def test_a_part_is_stored_or_copied_as_named() -> None:
    """The image's part is stored in place only if nothing else needs it apart."""
    whole = Buffer("whole", (16, 6, 4), float32)
    copy = stage(map_("copy", MADE, lambda i, j, c: MADE[i, j, c]))
    (c,) = copy.computations
    (o,) = c.outputs
    to = replace(o, tensor=whole, index=(o.index[0] + const(8), *o.index[1:]))
    copy = stage(replace(c, outputs=(to,)))
    steps = [CONV, POOL, copy]

    def stored(named: str, keep: Sequence[Buffer] = ()) -> int:
        return len(concat_in_place(steps, keep, 16, always(named)))

    assert (stored(IN_PLACE), stored(COPIED)) == (2, 3)
    assert stored(IN_PLACE, [MADE]) == 3
    asked: list[Any] = []

    def copied(*given: Any) -> str:
        asked.append(given)
        return COPIED

    concat_in_place(steps, [MADE], 16, copied)
    assert asked == []
    concat_in_place(steps, (), 16, copied)
    assert asked == [(steps, IN_PLACE, MADE)]


def plan(steps: Sequence[FusionGroup], results: Sequence[Buffer]) -> Plan:
    own = {b for s in steps for b in s.writes}
    reads = dict.fromkeys(b for s in steps for b in s.reads if b not in own)
    values = {b: Value(b.name, b.dtype, b.shape) for b in (*reads, *results)}
    given, made = ([values[b] for b in part] for part in (reads, results))
    graph = Graph("g", tuple(given), tuple(made), ())
    return Plan(graph, tuple(steps), {v: b for b, v in values.items()}, {})


def test_the_results_of_a_site_are_those_that_others_use() -> None:
    """Results of the plan, what other groups read, and what they write a part of."""
    both = plan([CONV, POOL, NEXT], [AROUND])
    assert site_of(both, [CONV, POOL]).live == {MADE}
    assert site_of(both, [CONV, NEXT]).live == {MADE, AROUND}
    assert site_of(plan([CONV, POOL], [SMALL]), [CONV, POOL]).live == {SMALL}
    again = stage(map_("part", MADE, lambda i, j, c: IMAGE[i, j, c]))
    parts = plan([CONV, stage(*again.computations, *NEXT.computations)], [AROUND])
    assert site_of(parts, [CONV]).live == {MADE}
    merged = stage(*CONV.computations, *POOL.computations)
    assert site_of(plan([CONV, POOL], [SMALL]), [merged]).live == {SMALL}


def test_a_result_is_used_by_another_writer_of_a_part() -> None:
    """Of an own tensor, which a concatenation is stored in: that group is no part of the site."""
    early = stage(map_("early", X, lambda i, j: Y[i, j]))
    rest = stage(map_("rest", X, lambda i, j: S[i] * 2.0))
    made = plan([early, total(S, Y), rest], [X])
    assert site_of(made, made.steps[:2]).live == {X, S}


def test_the_whole_of_a_site_is_all_that_its_groups_do() -> None:
    whole = PlanSite((CONV, POOL), (), {}).whole
    assert whole.computations == (*CONV.computations, *POOL.computations)
    assert (whole.sources, whole.name) == (("conv", "pool"), "conv and pool")
    assert PlanSite((CONV,), (), {}).whole is CONV


def test_who_decides() -> None:
    site = PlanSite((CONV,), (), {})
    one, all_of = OneAlternative(POOLING, site, APART), SiteSurvey()
    for d in DECISIONS:
        assert BY_ESTIMATE.named(d, site) is None
        assert one.named(d, site) == (APART if d is POOLING else None)
        assert all_of.named(d, site) is None
    assert [d for d, _ in all_of.asked] == [*DECISIONS]
    one.refused(POOLING, site, APART)
    assert not one.possible


def test_a_tensor_of_a_site_is_decided_about_alone() -> None:
    made = plan([CONV, NEXT], [AROUND])
    site = site_of(made, (CONV, NEXT), MADE)
    choose = chooses(OneAlternative(HALO, site, STORED), HALO, made)
    assert choose((CONV, NEXT), GUARDED, MADE) == STORED
    assert choose((CONV, NEXT), GUARDED, AROUND) == GUARDED
    assert choose((NEXT,), GUARDED, MADE) == GUARDED


def test_one_kernel_is_made_as_the_estimate_would() -> None:
    """A reduction with two results is dear: rows one after the other, also where that is named."""

    def cost(group: Sequence[Computation], constants: Collection[Buffer] = ()) -> float:
        return 9.0 if len(group[0].outputs) > 1 else 1.0

    steps = [total(S), total(T, op="max")]
    for choose in (estimated, always(TOGETHER)):
        (one,) = merge_siblings(steps, (), cost, COSTS, choose)
        assert isinstance(one, FusionGroup) and len(one.computations) == 2
    assert len(merge_siblings(steps, (), cost, COSTS, always(APART))) == 2


def test_only_choices_that_may_name_something_are_asked() -> None:
    made, all_of = plan([CONV, POOL], [SMALL]), SiteSurvey()
    assert chooses(BY_ESTIMATE, POOLING, made)((CONV, POOL), APART) == APART
    assert chooses(all_of, POOLING, made)((CONV, POOL), APART) == APART
    ((decision, site),) = all_of.asked
    assert (decision, site.groups, site.live) == (POOLING, (CONV, POOL), {SMALL})
    named = OneAlternative(HALO, site, STORED)
    assert chooses(named, HALO, made)((CONV, POOL), GUARDED) == STORED
    assert chooses(named, SIBLINGS, made)((CONV, POOL), APART) == APART


def test_decisions_have_names_of_their_own() -> None:
    assert len({d.name for d in DECISIONS}) == len(DECISIONS)
    assert all(len({*d.alternatives}) >= 2 for d in DECISIONS)
