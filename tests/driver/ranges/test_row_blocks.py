"""Kernels by blocks of rows: the results of the plain nest at every size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.plan.test_rows import K, M, N, Q, V, Y, attention, made
from tilewright.base import events
from tilewright.base.dtypes import float32
from tilewright.compute.interp import evaluate
from tilewright.compute.nodes import Computation, Dim
from tilewright.driver.ranges.row_blocks import by_rows
from tilewright.expr.nodes import INDEX, Buffer, Load, Var, const
from tilewright.ir.node import postorder
from tilewright.loops.interp import run
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Alloc, If, Kernel, loop
from tilewright.loops.sizes import statement
from tilewright.loops.verify import verify
from tilewright.loops.walk import loops_of
from tilewright.plan.nodes import FusionGroup
from tilewright.plan.open_extents import Resized
from tilewright.plan.rows import rows
from tilewright.schedule.full_tiles import full_tiles
from tilewright.targets.registry import target

R, J = Var("i", INDEX), Var("j", INDEX)


def softmax(
    n: Var = N, m: Var = M, read: str = "x"
) -> tuple[list[Computation], list[Buffer], list[Buffer]]:
    """Rows of one size, columns of another."""
    x, y, e = (Buffer(name, (n, m), float32) for name in (read, "y", "e"))
    z = Buffer("z", (n,), float32)
    whole = (Dim(R, n), Dim(J, m))
    summed = (Dim(R, n), Dim(J, m, "pw"))
    group = [
        made(e, whole, (R, J), Load(x, (R, J)) * 2.0),
        made(z, summed, (R,), Load(e, (R, J)), "add"),
        made(y, whole, (R, J), Load(e, (R, J)) + Load(z, (R,))),
    ]
    return group, [x], [y]


GROUPS = {
    "attention": lambda: (attention(), [Q, K, V], [Y]),
    "two sizes": softmax,
    "a tensor of a block's name": lambda: softmax(read="e_16"),
    "sizes of the names of blocks": lambda: softmax(
        Var("rows.16", INDEX), Var("rows.4", INDEX)
    ),
}


def plain(group: Sequence[Computation], ins: Any, outs: Any) -> Kernel:
    return lower("k", group, [*ins, *outs], outs)


@pytest.mark.covering(1)  # each group, each level
@pytest.mark.parametrize("mcpu", ["x86-64-v2", "x86-64-v4"])
@pytest.mark.parametrize("name", GROUPS)
def test_blocks_of_rows_are_the_whole(name: str, mcpu: str) -> None:
    group, ins, outs = GROUPS[name]()
    kernel = plain(group, ins, outs)
    some = by_rows(kernel, FusionGroup("g", tuple(group)), target("cpu", mcpu))
    assert some is not None
    kinds = {f.var.name: f.kind for f in loops_of(some.body)}
    shared = [n for n, kind in kinds.items() if kind == "parallel"]
    assert [n.removesuffix("_2") for n in shared] == [
        "rows.16",
        "rows.4",
        "rows.1",
    ]
    allocated = {n.buffer for n in postorder(some.body) if isinstance(n, Alloc)}
    tensors = [*some.params, *allocated]
    assert len({b.name for b in tensors}) == len(tensors)
    parted = full_tiles(some)
    verify(parted)
    found = rows(group, kernel.params)
    assert found is not None
    for n in (0, 1, 21):
        sized = Resized({**dict.fromkeys(some.sizes, 19), found.size: n}, {})
        rng = np.random.default_rng(n)
        memory: dict[Any, Any] = {
            b: rng.integers(-3, 4, sized.buffer(b).shape).astype(np.float32)
            for b in ins
        }
        want = evaluate(
            list(map(sized.computation, group)),
            {sized.buffer(b): a for b, a in memory.items()},
        )
        for b in outs:
            memory[b] = np.full(sized.buffer(b).shape, -1, np.float32)
        run(parted, {b: memory[b] for b in parted.params})
        for b in outs:
            np.testing.assert_allclose(
                memory[b], want[sized.buffer(b)], rtol=1e-5, atol=1e-5
            )


@pytest.mark.parametrize("mcpu", ["x86-64-v2", "x86-64-v4"])
def test_sizes_of_less_than_no_row_have_no_blocks(mcpu: str) -> None:
    """Windows of three rows with a stride of two: proofs are of any size, and no row makes -1."""
    count = (N - 1) // 2
    x = Buffer("x", (N, M), float32)
    y, e = (Buffer(name, (count, M), float32) for name in "ye")
    p = Var("p", INDEX)
    windows = (Dim(R, count), Dim(J, M), Dim(p, 3, "pw"))
    group = [
        made(e, windows, (R, J), Load(x, (R * 2 + p, J)), "add"),
        made(y, windows[:2], (R, J), Load(e, (R, J)) * 2.0),
    ]
    kernel = plain(group, [x], [y])
    some = by_rows(kernel, FusionGroup("g", tuple(group)), target("cpu", mcpu))
    assert some is not None
    verify(some)
    for n in (1, 2, 3, 44):
        image = np.random.default_rng(n).integers(-3, 4, (n, 5)).astype(np.float32)
        most = (n - 1) // 2
        out = np.full((most, 5), -1, np.float32)
        run(some, {b: {"x": image, "y": out}[b.name] for b in some.params})
        want = [2 * image[2 * k : 2 * k + 3].sum(0) for k in range(most)]
        np.testing.assert_array_equal(out, np.reshape(want, out.shape))


def test_costs_of_the_machine_say_how_many_rows_a_block_has() -> None:
    group, ins, outs = GROUPS["two sizes"]()
    machine = target("cpu", "x86-64-v4", description={"costs": {"row_step": 3}})
    kernel = plain(group, ins, outs)
    some = by_rows(kernel, FusionGroup("g", tuple(group)), machine)
    assert some is not None
    names = [f.var.name for f in loops_of(some.body) if f.kind == "parallel"]
    assert names == ["rows.9", "rows.3", "rows.1"]


def scheduled(most: int, exact: bool = False) -> Kernel:
    """Attention over sizes below `most`."""
    group, ins, outs = GROUPS["attention"]()
    body = loop(N, most, statement(plain(group, ins, outs)), "size")
    kernel = Kernel("k", (*ins, *outs), tuple(outs), body)
    machine = target("cpu", "x86-64-v4", exact)
    some = by_rows(kernel, FusionGroup("g", tuple(group)), machine)
    assert some is not None
    return some


def test_sums_along_rows_have_partial_results_where_order_is_free() -> None:
    assert "z_16.rf" in str(scheduled(999))
    assert ".rf" not in str(scheduled(999, exact=True))


@pytest.mark.sampled(2)  # below a tile, and far above
@pytest.mark.parametrize("most", [20, 33, 999])
def test_tiles_are_no_longer_than_the_greatest_size(most: int) -> None:
    vectors = [f.var.name for f in loops_of(scheduled(most).body) if f.kind == "vector"]
    assert any(name.startswith("s_16") and ".c" not in name for name in vectors)


def test_sizes_that_must_be_more_than_0_have_no_blocks() -> None:
    group, ins, outs = GROUPS["attention"]()
    kernel = plain(group, ins, outs)
    guarded = If(N >= const(1, INDEX), statement(kernel), None)
    tested = Kernel("k", kernel.params, kernel.outputs, loop(N, 40, guarded, "size"))
    assert by_rows(tested, FusionGroup("g", tuple(group)), target("cpu")) is None


@pytest.mark.parametrize(
    ("extents", "at"),
    [((N, M), lambda: ((R + 1) % N, J)), ((N * M,), lambda: (R * M + J,))],
    ids=["remainder", "one axis for both"],
)
def test_reads_that_are_not_proven_inside_in_blocks_keep_it_whole(
    extents: Any, at: Any
) -> None:
    """Row r + 1, modulo n, is inside; row 16 * k + r + 1, modulo n, is too, but not proven."""
    group, _, outs = softmax()
    x = Buffer("x", extents, float32)
    e = group[0].outputs[0].tensor
    group[0] = made(e, (Dim(R, N), Dim(J, M)), (R, J), Load(x, at()) * 2.0)
    kernel = plain(group, [x], outs)
    verify(kernel)
    with events.record() as log:
        assert by_rows(kernel, FusionGroup("g", tuple(group)), target("cpu")) is None
    (event,) = [e for e in log if e.kind == "kept-whole"]
    assert "is not proven inside" in event.fields["reason"]
