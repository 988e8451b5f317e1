"""Groups taken apart into kernels, and the constants of a model in one block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

import tilewright as tw
from tests.compute.memory import same
from tilewright.base.dtypes import float32
from tilewright.base.errors import VerifyError
from tilewright.compute.build import map_, reduce_
from tilewright.compute.nodes import Computation
from tilewright.driver import constants
from tilewright.driver.compiled import CompiledGroup, Preparation
from tilewright.driver.constants import ConstantPool, PackedWeight
from tilewright.driver.kernels import KernelCompiler
from tilewright.driver.prepare import ConstantPacker, place_prepared
from tilewright.expr.nodes import Buffer, Expr
from tilewright.graph.nodes import Operation
from tilewright.plan.nodes import FusionGroup, HostFallback
from tilewright.plan.normalize import kernel_signature
from tilewright.plan.passes.split_groups import split_groups
from tilewright.plan.verify import verify_steps
from tilewright.runtime import abi
from tilewright.runtime.buffer import address, arena
from tilewright.runtime.packing import Packing, PackingPart
from tilewright.targets.registry import target

# -- stages


class Profitable:
    """A target that makes one kernel of some lists of Computations, by their names."""

    def __init__(self, *groups: str) -> None:
        self.groups = groups

    def is_profitable(self, group: Sequence[Computation]) -> bool:
        return "".join(c.name for c in group) in self.groups


X, S, T, Y = (Buffer(n, s, float32) for n, s in (("x", (4, 6)), ("s", (4,)), ("t", (4, 6)),
                                                 ("y", (9, 6))))  # fmt: skip


def steps() -> list[Computation]:
    """Sums of rows, shares of them, the greatest into one part of y, the rest into another."""

    def rows(start: int) -> Callable[..., tuple[Expr, ...]]:
        return lambda i, j: (i + start, j)

    return [
        reduce_("a", S, (6,), "add", lambda i, k: X[i, k]),
        map_("b", T, lambda i, j: X[i, j] - S[i]),
        map_("c", Y, lambda i, j: T[i, j] * 2.0, extents=(4, 6), index=rows(0)),
        map_("d", Y, lambda i, j: T[3 - i, j] + S[i], extents=(4, 6), index=rows(4)),
        map_("e", Y, lambda i, j: Y[3, j] + Y[7, j], extents=(1, 6), index=rows(8)),
    ]


@pytest.mark.parametrize(
    "covered",
    [
        (),
        ("a", "b", "c"),
        ("ab", "cd"),
        ("a", "bc", "bcd"),
        ("abcd", "abc", "ab"),
        ("abcde",),
    ],
    ids=str,
)
def test_all_computations_stay_in_their_order(covered: tuple[str, ...]) -> None:
    """Whatever is profitable: several write one tensor, and one reads what it writes."""
    group = steps()
    made: Any = split_groups(
        [FusionGroup("s", tuple(group), ("op",), 7)], Profitable(*covered).is_profitable
    )
    assert (len(made) == 1) is ("abcde" in covered)
    after = [c for s in made for c in s.computations]
    assert after == group
    same(group, after)
    verify_steps(made, [X], [Y])
    assert sum(s.flops for s in made) == 7 and all(s.sources == ("op",) for s in made)


def test_one_computation_and_what_runs_elsewhere_stay() -> None:
    call = HostFallback(Operation("Own", (), (), {}, "", 1, "call"))
    one = FusionGroup("one", tuple(steps()[:1]))
    listed = [one, call, one]
    assert split_groups(listed, Profitable().is_profitable) == listed


# -- constants


def test_constants_begin_at_whole_lines_and_are_placed_once() -> None:
    pool = ConstantPool()
    data = np.arange(5, dtype=np.float32)
    places = [pool.place_array(data + n) for n in (0, 1, 0)]
    nothing = pool.place_array(np.zeros((0, 3), np.float32))
    one = pool.place_array(np.array(True))
    turned = pool.place_array(np.arange(6, dtype=np.int8).reshape(2, 3).T)
    assert places[0] == places[2] != places[1]
    assert all(at % abi.ALIGNMENT == 0 for at in (*places, nothing, one, turned))
    block = pool.block()
    for at, n in zip(places[:2], (0, 1), strict=True):
        np.testing.assert_array_equal(block[at : at + 20].view(np.float32), data + n)
    assert block[one] == 1
    np.testing.assert_array_equal(
        block[turned : turned + 6].view(np.int8), [0, 3, 1, 4, 2, 5]
    )


def test_equal_arrays_have_one_place() -> None:
    pool = ConstantPool()
    first = np.arange(1000, dtype=np.float32)
    assert pool.place_array(first) == pool.place_array(first.copy())
    assert pool.place_array(first) != pool.place_array(first.reshape(10, 100))


def test_the_same_packing_of_a_weight_has_one_place() -> None:
    pool = ConstantPool()
    back, same, on = (
        Packing((PackingPart((5,), (4 if by < 0 else 0,), (by,), (), ((0, 0),), (1,)),))
        for by in (-1, -1, 1)
    )
    one, other = np.arange(5, dtype=np.float32), np.ones(5, np.float32)
    pairs = [(one, back), (one, same), (one, on), (other, back)]
    places = [pool.place_packed(PackedWeight(w, p, "float32")) for w, p in pairs]
    assert places[0] == places[1] and len(set(places)) == 3
    found = pool.held().block
    assert found[places[0] :][:20].view(np.float32).tolist() == [4, 3, 2, 1, 0]
    assert found[places[2] :][:20].view(np.float32).tolist() == [0, 1, 2, 3, 4]


def test_constants_of_code_that_is_dropped_take_no_place() -> None:
    pool = ConstantPool()
    kept, dropped = (np.full(20, n, np.float32) for n in (1, 2))
    pool.place_array(kept)
    size = pool.size
    pool.place("b", (4, 0), lambda views: views[0].fill(9))
    pool.place_array(dropped)
    pool.forget(size)
    assert pool.size == size
    assert pool.place_array(kept) == 0
    assert pool.place_array(dropped) == size
    found = pool.held().block.view(np.float32)
    assert set(found[:20]) == {1} and set(found[size // 4 :][:20]) == {2}


def test_constants_before_dropped_ones_stay_though_they_end_where_those_begin() -> None:
    pool = ConstantPool()
    (at, end) = pool.place("b", (4, 0), lambda views: views[0].fill(9))
    assert end == pool.size
    pool.forget(end)
    assert pool.block()[at : at + 4].tolist() == [9] * 4


def test_a_file_has_nothing_of_weights_that_are_dropped() -> None:
    """Neither their packings, nor their old places for those that are packed again."""
    thrice = Packing((PackingPart((3, 4096), (0,), (0, 1), (), ((0, 0),), (4096, 1)),))
    weight, other = (np.arange(4096, dtype=np.float32) + n for n in (0, 1))
    pool = ConstantPool()
    for w in (other, weight):
        pool.place_array(w)
        pool.place_packed(PackedWeight(w, thrice, "float32"))
    pool.forget(0)
    at = pool.place_packed(PackedWeight(weight, thrice, "float32"))
    held = pool.held()
    assert [(p.at, p.weight) for p in held.packed] == [(at, -1)]
    assert bytes(held.weights[0]) == weight.tobytes()


def poisoned(value: int) -> Callable[..., Any]:
    def make(nbytes: int) -> Any:
        found = arena(nbytes)
        found[...] = value
        return found

    return make


def test_what_is_between_constants_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = ConstantPool()
    pool.place_array(np.full(3, 7, np.int8))
    pool.place("b", (1, 0, 65), lambda views: [v.fill(9) for v in views] and None)
    monkeypatch.setattr(constants, "arena", poisoned(0xAB))
    block = pool.block()
    assert sorted(set(block.tolist())) == [0, 7, 9]
    assert (block == 9).sum() == 66 and (block == 7).sum() == 3


def test_large_constants_are_on_huge_pages() -> None:
    pool = ConstantPool()
    pool.place("much", (4 << 20,), lambda views: views[0].fill(1))
    assert address(pool.block()) % (2 << 20) == 0


def test_fills_of_a_large_block_write_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Several threads at once, each its views."""
    pool = ConstantPool()
    sizes = [(k * 977) % 5000 + 1 for k in range(500)]
    data = [np.full(size, n % 251, np.uint8) for n, size in enumerate(sizes)]
    places = list(map(pool.place_array, data))
    monkeypatch.setattr(constants, "_ALONE", 0)
    block = pool.block()
    for n, (at, size) in enumerate(zip(places, sizes, strict=True)):
        assert (block[at : at + size] == n % 251).all()


MODELS = {
    "product": "g (float[7,13] x, float[13,11] w) => (float[7,11] y) { y = MatMul(x, w) }",
    "convolution": """g (float[1,7,9,9] x, float[5,7,3,3] w) => (float[1,5,9,9] y)
        { y = Conv<pads=[1,1,1,1]>(x, w) }""",
    "bytes": "g (uint8[9,31] x, int8[31,19] w) => (int32[9,19] y) { y = MatMulInteger(x, w) }",
}


@pytest.mark.parametrize("name", MODELS)
def test_packed_constants_are_written_whole(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An artifact has nothing of what was in the compiler's memory before."""
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 21]>\n{MODELS[name]}'
    )
    w = model.graph.input.pop()
    shape = [d.dim_value for d in w.type.tensor_type.shape.dim]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(w.type.tensor_type.elem_type)
    data = np.random.default_rng(0).integers(-9, 9, shape).astype(dtype)
    model.graph.initializer.append(numpy_helper.from_array(data, w.name))
    blocks = []
    for value in (0xAB, 0x11):
        monkeypatch.setattr(constants, "arena", poisoned(value))
        blocks.append(bytes(tw.compile(model, cache=False).model.constants))
    assert blocks[0] == blocks[1] and any(blocks[0])


# -- work on constants


def test_a_packed_weight_and_what_is_made_of_it_have_places_once() -> None:
    back = Packing((PackingPart((5,), (4,), (-1,), (), ((0, 0),), (1,)),))
    made = tuple(Preparation(f"p{n}", (n,), (5,), "float32", 0, back) for n in (0, -1))
    group = CompiledGroup("k", (-1, -2), 0, 0, made, b"", (b"", b""))
    pool, weight = ConstantPool(), np.arange(5, dtype=np.float32)
    places, again = (
        place_prepared(pool, group, [w], lambda: ConstantPacker([group]))
        for w in (weight, weight.copy())
    )
    assert places == again
    block = pool.block()
    first, second = (block[places[n] :][:20].view(np.float32).tolist() for n in (0, 1))
    assert first == [4, 3, 2, 1, 0] and second == [0, 1, 2, 3, 4]


def test_work_on_constants_reads_constants() -> None:
    """A kernel compiled for a constant operand has nothing to pack where there is none."""
    x, w, y = (
        Buffer(n, s, float32)
        for n, s in (("x", (32, 48)), ("w", (48, 64)), ("y", (32, 64)))
    )
    c = reduce_("mm", y, (48,), "add", lambda i, j, k: x[i, k] * w[k, j])
    cpu = target("cpu")
    compiler = KernelCompiler(cpu, cpu, None)
    made = compiler.compile(kernel_signature(FusionGroup("mm", (c,)), {y}), {w})
    assert made.preparations[0].packing is not None
    assert made.prepare_code == (b"",)
    run = ConstantPacker([made]).run
    data = np.arange(48 * 64, dtype=np.float32).reshape(48, 64)
    results = {0: np.full(made.preparations[0].nbytes, 0xAB, np.uint8)}
    run(made, [None, data, None], results)
    assert sorted(results[0].view(np.float32)) == sorted(data.reshape(-1))
    with pytest.raises(VerifyError, match="is not constant"):
        run(made, [data, None, None], results)
    first = made.preparations[0]
    longer = replace(made, preparations=(replace(first, shape=(*first.shape, 2)),))
    results = {0: np.full(longer.preparations[0].nbytes, 0xAB, np.uint8)}
    run(longer, [None, data, None], results)
    assert not results[0][first.nbytes :].any()
    # What is prepared on the way to another result has no place among the constants.
    twice = replace(
        made,
        arguments=tuple(-2 if k < 0 else k for k in made.arguments),
        preparations=(first, replace(first, inputs=(-1,))),
        prepare_code=made.prepare_code * 2,
    )
    assert made.kept == (0,)
    assert twice.kept == (1,)
    one, both, last = ({n: np.zeros(first.nbytes, np.uint8)} for n in (0, 0, 1))
    both[1] = np.zeros(first.nbytes, np.uint8)
    run(made, [None, data, None], one)
    run(twice, [None, data, None], both)
    run(twice, [None, data, None], last)
    np.testing.assert_array_equal(both[0], one[0])
    np.testing.assert_array_equal(last[1], both[1])
    assert (last[1] != one[0]).any()
