"""Emits copies of boxes: `cp.async.bulk.tensor`, whose bytes "mbarriers" count.

A tensor map of 128 bytes says what a box is of; the driver encodes it at each launch. Blocks of a
cluster are started together since the kernel says how many these are. Names and rules follow the
PTX ISA, "cp.async.bulk.tensor", "mbarrier", "barrier.cluster" and "mapa".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tilewright.targets.llvm.emit_boxes import BoxCopies
from tilewright.targets.llvm.emit_text import LlvmValue

MAP: Final = 128  # bytes of a tensor map
VERSION: Final = "ptx80"  # of PTX, from which on there are these
_NVVM: Final = "@llvm.nvvm"
_IN_BLOCK: Final = "scope.cta.space.cta"


def _parameter(name: str) -> str:
    return f'ptr byval([{MAP} x i8]) align 64 "nvvm.grid_constant" {name}'


def _copy(
    target: LlvmValue, counted: LlvmValue, of: str, at: Sequence[LlvmValue], into: int
) -> str:
    name = f"{_NVVM}.cp.async.bulk.tensor.g2s.tile.{len(at)}d"
    coordinates = ", ".join(v.typed for v in at)
    is_multicast = int(into > 0)
    # No hint for the cache, units of one block.
    rest = f"i16 {into}, i64 0, i1 {is_multicast}, i1 0, i32 0"
    to = f"{target.typed}, {counted.typed}"
    return f"call void {name}({to}, ptr {of}, {coordinates}, {rest})"


def _cluster(blocks: tuple[int, int, int]) -> str:
    extents = ",".join(map(str, blocks))
    return f'"nvvm.cluster_dim"="{extents}"'


BOXES: Final = BoxCopies(
    parameter=_parameter,
    begin=lambda at: f"call void {_NVVM}.mbarrier.init.shared({at.typed}, i32 1)",
    visible=f"call void {_NVVM}.fence.mbarrier_init.release.cluster()",
    expect=lambda at, n: (
        f"call void {_NVVM}.mbarrier.expect.tx.{_IN_BLOCK}({at.typed}, i32 {n})"
    ),
    copy=_copy,
    arrive=lambda at: f"call i64 {_NVVM}.mbarrier.arrive.shared({at.typed})",
    arrived=lambda at, parity: (
        f"call i1 {_NVVM}.mbarrier.try.wait.parity.{_IN_BLOCK}"
        f"({at.typed}, {parity.typed})"
    ),
    space="ptr addrspace(7)",
    cluster=_cluster,
    fence=f"call void {_NVVM}.fence.proxy.async.shared_cluster()",
    together=(
        f"call void {_NVVM}.barrier.cluster.arrive.aligned()",
        f"call void {_NVVM}.barrier.cluster.wait.aligned()",
    ),
    peer=lambda at, rank: (
        f"call ptr addrspace(7) {_NVVM}.mapa.shared.cluster({at.typed}, {rank.typed})"
    ),
    feature="sm_90",
)
