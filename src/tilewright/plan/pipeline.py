"""The passes over a plan as a named pipeline: each step timed, traced, and verified on request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Final

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer
from tilewright.ir.passes import Pass, Pipeline
from tilewright.plan.decisions import (
    BY_ESTIMATE,
    CONCAT,
    FORM,
    HALO,
    POOLING,
    SIBLINGS,
    PlanChoice,
    Refused,
    chooses,
    may_differ,
    site_of,
)
from tilewright.plan.nodes import HOST, FusionGroup, Plan, Step
from tilewright.plan.passes.compensate import compensate
from tilewright.plan.passes.concat_in_place import concat_in_place
from tilewright.plan.passes.fuse import fuse, inline_views
from tilewright.plan.passes.halo import add_halos
from tilewright.plan.passes.of_device import Rewrite, of_device
from tilewright.plan.passes.partition import Partition, Refuses
from tilewright.plan.passes.pooling import pool_in_blocks
from tilewright.plan.passes.products import merge_products
from tilewright.plan.passes.recompute import Recompute
from tilewright.plan.passes.siblings import merge_siblings
from tilewright.plan.passes.split_groups import IsProfitable, split_groups
from tilewright.plan.passes.split_positions import split_positions
from tilewright.plan.passes.split_sums import split_deep_sums
from tilewright.plan.passes.split_windows import split_windows
from tilewright.plan.passes.stream_attention import stream_attention
from tilewright.plan.passes.weights import weights_last
from tilewright.plan.passes.windows import separate_windows
from tilewright.plan.passes.winograd import WinogradForms, transform_convolutions
from tilewright.plan.questions import (
    Cost,
    Decided,
    PlanCosts,
    Questions,
    at_this_size,
)
from tilewright.plan.verify import verify

# Results per tile and axis that `math` allows; larger tiles round more.
WINOGRAD: Final[dict[str, tuple[int, ...]]] = {
    "exact": (),
    "default": (2,),
    "fast": (2, 4),
}


@dataclass(frozen=True)
class Compensate(Pass[Plan]):
    """Keep the rounding errors of long sums, and add them at the end."""

    def run(self, program: Plan) -> Plan:
        return replace(program, steps=tuple(compensate(program.steps)))


@dataclass(frozen=True)
class Fuse(Pass[Plan]):
    """Fuse maps into the kernels of their readers or of their operands.

    repeated: see `PlanCosts`, as for the parameters of other passes. device: whose kernels.
    """

    repeated: int
    decided: Decided | None = field(default=None, repr=False)
    device: str = HOST

    def run(self, program: Plan) -> Plan:
        kept, repeated = program.kept, self.repeated
        decided = self.decided or at_this_size
        return of_device(
            program,
            self.device,
            lambda steps: fuse(steps, kept, repeated, decided),
        )


@dataclass(frozen=True)
class WeightsLast(Pass[Plan]):
    """Store the weights of a device's convolutions channels last where that pays."""

    cost: Cost = field(repr=False)
    device: str
    gain: float

    def run(self, program: Plan) -> Plan:
        return weights_last(program, self.device, self.cost, self.gain)


@dataclass(frozen=True)
class InlineViews(Pass[Plan]):
    """Inline maps that move nothing in memory; all other operators get separate kernels."""

    def run(self, program: Plan) -> Plan:
        kept = program.kept
        return _on_host(program, lambda steps: inline_views(steps, kept))


@dataclass(frozen=True)
class ConcatInPlace(Pass[Plan]):
    """Store tensors that are copied whole into another tensor inside that tensor."""

    side_by_side: int
    choice: PlanChoice = field(default=BY_ESTIMATE, repr=False)
    decides: ClassVar = CONCAT

    def run(self, program: Plan) -> Plan:
        fixed = _fixed(program)
        least = self.side_by_side
        choose = chooses(self.choice, CONCAT, program)
        return _on_host(
            program, lambda steps: concat_in_place(steps, fixed, least, choose)
        )


@dataclass(frozen=True)
class StreamAttention(Pass[Plan]):
    """Process attention in blocks of keys if scores exceed a cache, or if blocks are hidden.

    device: whose kernels.
    """

    ask: Questions = field(repr=False)
    device: str = HOST

    def run(self, program: Plan) -> Plan:
        kept, data, ask = program.kept, program.data, self.ask
        return of_device(
            program,
            self.device,
            lambda steps: stream_attention(steps, kept, ask, data),
        )


@dataclass(frozen=True)
class SplitGroups(Pass[Plan]):
    """Split groups that are not profitable as one kernel."""

    is_profitable: IsProfitable = field(repr=False)

    def run(self, program: Plan) -> Plan:
        return _on_host(program, lambda steps: split_groups(steps, self.is_profitable))


@dataclass(frozen=True)
class MergeProducts(Pass[Plan]):
    """Merge products of one tensor with several constants into one product."""

    cost: Cost = field(repr=False)

    def run(self, program: Plan) -> Plan:
        made: dict[Buffer, np.ndarray[Any, Any]] = {}

        def merged(steps: Sequence[Step]) -> list[Step]:
            kept, data = program.kept, program.data
            found, constants = merge_products(steps, kept, data, self.cost)
            made.update(constants)
            return found

        return _on_host(program, merged).with_constants(made)


@dataclass(frozen=True)
class MergeSiblings(Pass[Plan]):
    """Merge groups that read one tensor at the same points into one with several results."""

    cost: Cost = field(repr=False)
    costs: PlanCosts = field(repr=False)
    choice: PlanChoice = field(default=BY_ESTIMATE, repr=False)
    decides: ClassVar = SIBLINGS

    def run(self, program: Plan) -> Plan:
        data, cost, costs = program.data, self.cost, self.costs
        choose = chooses(self.choice, SIBLINGS, program)
        return _on_host(
            program, lambda steps: merge_siblings(steps, data, cost, costs, choose)
        )


@dataclass(frozen=True)
class Winograd(Pass[Plan]):
    """Use Winograd's method, with tiles of `tiles` results per axis, where profitable.

    choice: see `plan.decisions`, as for other passes.
    """

    cost: Cost = field(repr=False)
    costs: PlanCosts = field(repr=False)
    tiles: tuple[int, ...] = (2,)
    choice: PlanChoice = field(default=BY_ESTIMATE, repr=False)
    decides: ClassVar = FORM

    def run(self, program: Plan) -> Plan:
        costs = self.costs
        forms = WinogradForms(
            self.tiles, self.cost, costs.moved_ns, costs.near, costs.group_ns
        )
        data, kept = program.data, program.kept
        named, refused = _forms(self.choice, program)
        return _on_host(
            program,
            lambda steps: transform_convolutions(
                steps, forms, data, kept, named, refused
            ),
        )


@dataclass(frozen=True)
class SplitWindows(Pass[Plan]):
    """Split convolutions by window position if most of their products are with padding."""

    cost: Cost = field(repr=False)
    gain: float
    choice: PlanChoice = field(default=BY_ESTIMATE, repr=False)
    decides: ClassVar = FORM

    def run(self, program: Plan) -> Plan:
        data, cost, gain = program.data, self.cost, self.gain
        named, refused = _forms(self.choice, program)
        return _on_host(
            program,
            lambda steps: split_windows(steps, data, cost, gain, named, refused),
        )


@dataclass(frozen=True)
class SplitDeepSums(Pass[Plan]):
    """Split sums that read more than a cache holds, or that have few results, into partial sums.

    launch_ns: nanoseconds per additional kernel. device: whose kernels. weights_only: split only
    sums over axes of a constant.
    """

    cost: Cost = field(repr=False)
    deep_sum: int
    launch_ns: float = 0.0
    device: str = HOST
    weights_only: bool = False

    def run(self, program: Plan) -> Plan:
        split = partial(
            split_deep_sums,
            constants=program.data,
            cost=self.cost,
            least=self.deep_sum,
            launch_ns=self.launch_ns,
            weights_only=self.weights_only,
        )
        return of_device(program, self.device, split)


@dataclass(frozen=True)
class SeparateWindows(Pass[Plan]):
    """Pool along one axis after another if that is less work.

    exact: operations that round keep their order.
    """

    cost: Cost = field(repr=False)
    exact: bool = False

    def run(self, program: Plan) -> Plan:
        cost, exact = self.cost, self.exact
        return _on_host(program, lambda steps: separate_windows(steps, cost, exact))


@dataclass(frozen=True)
class PoolInBlocks(Pass[Plan]):
    """Merge convolutions with the pooling of their results if no cache holds these."""

    cost: Cost = field(repr=False)
    choice: PlanChoice = field(default=BY_ESTIMATE, repr=False)
    decides: ClassVar = POOLING

    def run(self, program: Plan) -> Plan:
        kept, data, cost = program.kept, program.data, self.cost
        choose = chooses(self.choice, POOLING, program)
        return _on_host(
            program, lambda steps: pool_in_blocks(steps, kept, data, cost, choose)
        )


@dataclass(frozen=True)
class SplitPositions(Pass[Plan]):
    """Store positions of a sequence that convolutions read as a picture as rows and columns."""

    def run(self, program: Plan) -> Plan:
        fixed = _fixed(program)
        return _on_host(program, lambda steps: split_positions(steps, fixed))


@dataclass(frozen=True)
class AddHalos(Pass[Plan]):
    """Store tensors that are read with padding together with their padding."""

    halo: float
    decided: Decided | None = field(default=None, repr=False)
    choice: PlanChoice = field(default=BY_ESTIMATE, repr=False)
    decides: ClassVar = HALO

    def run(self, program: Plan) -> Plan:
        fixed = _fixed(program)
        most, decided = self.halo, self.decided
        choose = chooses(self.choice, HALO, program)
        return _on_host(
            program, lambda steps: add_halos(steps, fixed, most, decided, choose)
        )


def _split(asked: Questions, device: str) -> SplitDeepSums:
    costs = asked.costs
    return SplitDeepSums(
        asked.estimated_cost,
        costs.deep_sum,
        costs.launch_ns,
        device,
        weights_only=not asked.in_parts,
    )


def _forms(choice: PlanChoice, plan: Plan) -> tuple[dict[FusionGroup, str], Refused]:
    """The forms that are named for groups of the host, and who is told that one is refused."""
    groups = filter(may_differ, plan.groups_on(HOST)) if choice.asks else ()
    sites = {g: site_of(plan, (g,)) for g in groups}
    named = {g: choice.named(FORM, site) for g, site in sites.items()}
    return (
        {g: form for g, form in named.items() if form is not None},
        lambda group, form: choice.refused(FORM, sites[group], form),
    )


def _on_host(plan: Plan, rewrite: Rewrite) -> Plan:
    """The plan with the host's steps rewritten; groups of devices stay as accepted."""
    return of_device(plan, HOST, rewrite)


def _fixed(plan: Plan) -> frozenset[Buffer]:
    """Buffers that no pass may move: the kept ones and the constants."""
    return plan.kept.union(plan.data)


def plan_pipeline(
    ask: Questions,
    math: str,
    refuses: Mapping[str, Refuses] = MappingProxyType({}),
    limit: int | None = None,
    fusion: bool = True,
    fused: Mapping[str, Questions] = MappingProxyType({}),
) -> Pipeline[Plan]:
    """The passes from lowering to kernels. `math`: what the arithmetic may become.

    refuses: for each device besides the host, the reason to reject a group. limit: bytes that a
    call may need; None for no limit. fusion: if off, each operator has separate kernels and
    results, and later passes only change how these compute. fused: the devices that accept groups
    and Kernels of any form, with their targets' answers.
    """
    exact, costs = math == "exact", ask.costs
    passes: list[Pass[Plan]] = [Compensate()] if exact else []
    passes += [Partition(d, why, any_form=d in fused) for d, why in refuses.items()]
    for device, asked in fused.items():
        gain = asked.costs.weights_gain
        passes.append(WeightsLast(asked.estimated_cost, device, gain))
    if fusion:
        passes += [Fuse(costs.repeated, ask.decided, device) for device in fused]
        in_place = ConcatInPlace(costs.side_by_side, ask.choice)
        passes += [Fuse(costs.repeated, ask.decided), in_place]
    else:
        passes.append(InlineViews())
    if not exact:
        if fusion:
            for device, asked in fused.items():
                passes += [StreamAttention(asked, device), _split(asked, device)]
        passes.append(StreamAttention(ask))
    passes.append(SplitGroups(ask.is_profitable))
    if fusion:
        passes.append(MergeSiblings(ask.estimated_cost, costs, ask.choice))
    if not exact and ask.in_parts:
        tiles = WINOGRAD[math]
        passes += [
            Winograd(ask.estimated_cost, costs, tiles, ask.choice),
            SplitWindows(ask.estimated_cost, costs.window_gain, ask.choice),
        ]
    if not exact:
        passes.append(_split(ask, HOST))
    if ask.in_parts:
        passes.append(SeparateWindows(ask.estimated_cost, exact))
    if fusion and ask.in_parts:  # after Winograd: its convolutions read whole tensors
        passes.append(PoolInBlocks(ask.estimated_cost, ask.choice))
    if fusion:
        passes.append(MergeProducts(ask.estimated_cost))
    passes += [SplitPositions(), AddHalos(costs.halo, ask.decided, ask.choice)]
    if limit is not None:
        passes.append(Recompute(ask.estimated_cost, limit))
    checked: set[Computation] = (
        set()
    )  # Computations that a pass leaves unchanged need no new check
    return Pipeline(
        "plan",
        tuple(passes),
        partial(verify, checked=checked),
    )
