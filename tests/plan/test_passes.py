"""For each condition of a pass over groups a list that would go wrong without it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx.parser
import pytest

from tilewright.base.dtypes import float32, int32
from tilewright.base.errors import VerifyError
from tilewright.compute.build import map_, padded, reduce_
from tilewright.compute.interp import evaluate, run
from tilewright.compute.nodes import CC, Computation, Dim, Output
from tilewright.compute.split_axes import split_axes
from tilewright.expr.nodes import INDEX, Buffer, Expr, Lt, Select, Var, const
from tilewright.frontends.onnx import load
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.ir.node import postorder
from tilewright.loops.nodes import Alloc, Kernel, Store, block, loop
from tilewright.loops.passes.hoist import hoist
from tilewright.plan.lower import lower
from tilewright.plan.nodes import FusionGroup, HostFallback, Step
from tilewright.plan.offsets import from_zero
from tilewright.plan.passes.concat_in_place import concat_in_place
from tilewright.plan.passes.fuse import fuse
from tilewright.plan.passes.halo import add_halos
from tilewright.plan.passes.windows import separate_windows
from tilewright.plan.passes.winograd import WinogradForms, transform_convolutions
from tilewright.plan.verify import verify_steps
from tilewright.targets.registry import target
from tilewright.testing.differential import check

Steps = Sequence[Step]
COSTS = target("cpu", "x86-64-v3").plan_costs
IMAGE = Buffer("x", (4, 6, 6), float32)
FILTER = Buffer("w", (5, 4, 3, 3), float32)


def same(
    before: Steps, after: Steps, given: Sequence[Buffer], results: Sequence[Buffer]
) -> None:
    """Both lists of steps are valid and compute the same results."""
    found = []
    rng = np.random.default_rng(0)
    data = {b: rng.integers(-3, 4, b.shape).astype(b.dtype.numpy) for b in given}
    for steps in (before, after):
        verify_steps(steps, given, results)
        memory: dict[Buffer, Any] = {b: a.copy() for b, a in data.items()}
        for s in steps:
            assert isinstance(s, FusionGroup)
            for b in s.writes:
                memory.setdefault(b, np.full(b.shape, np.nan, b.dtype.numpy))
            run(s.computations, memory)
        found.append([memory[b] for b in results])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-4)


def stage(name: str, *computations: Computation) -> FusionGroup:
    return FusionGroup(name, computations)


# -- fusion


def several() -> tuple[list[FusionGroup], list[Buffer], Buffer, Buffer]:
    """Row sums s and their shares y, both read by others; who reads s comes first."""
    x = Buffer("x", (4, 8), float32)
    s, y = Buffer("s", (4,), float32), Buffer("y", (4,), float32)
    z, u = Buffer("z", (4,), float32), Buffer("u", (4,), float32)
    both = stage(
        "both",
        reduce_("sums", s, (8,), "add", lambda i, k: x[i, k]),
        reduce_("most", y, (8,), "max", lambda i, k: x[i, k] - s[i]),
    )
    early = stage("early", map_("early", z, lambda i: s[i] * 2.0))
    late = stage("late", map_("late", u, lambda i: y[i] + 1.0))
    return [both, early, late], [x], z, u


def test_a_stage_that_others_read_meanwhile_does_not_wait_for_its_epilogue() -> None:
    """LayerNormalization whose mean is read before its result is: the mean came too late."""
    steps, given, z, u = several()
    same(steps, fuse(steps, frozenset({z, u}), COSTS.repeated), given, [z, u])
    late_first = [steps[0], steps[2], steps[1]]
    fused = fuse(late_first, frozenset({z, u}), COSTS.repeated)
    assert len(fused) == 2
    same(late_first, fused, given, [z, u])


@pytest.mark.parametrize("moves", [True, False])
def test_what_is_read_for_many_elements_is_computed_once(moves: bool) -> None:
    """Unless it is moved and not computed."""
    x, t, y = (
        Buffer("x", (8,), float32),
        Buffer("t", (8,), float32),
        Buffer("y", (8, 9), float32),
    )
    first = map_("t", t, lambda i: x[7 - i] if moves else x[i] * x[i] + 1.0)
    steps = [
        stage("first", first),
        stage("second", map_("y", y, lambda i, j: t[i] * 2.0)),
    ]
    fused = fuse(steps, frozenset({y}), COSTS.repeated)
    assert len(fused) == (1 if moves else 2)
    same(steps, fused, [x], [y])


MASK, FLOW = Buffer("m", (4, 6, 6), float32), Buffer("g", (4, 6, 6), float32)


def masked(out: Buffer) -> FusionGroup:
    """The derivative of Relu: the incoming gradient where the result is not 0."""
    zero = const(0.0, float32)
    where = map_("where", out, lambda *i: Select(Lt(zero, MASK[i]), FLOW[i], zero))
    return stage("where", where)


@pytest.mark.parametrize("taps", [3, 5])
def test_a_masked_tensor_is_stored_for_a_window_that_reads_it_often(taps: int) -> None:
    """It is then stored with a halo, and the convolution needs no guard."""
    t, y, w = (
        Buffer("t", IMAGE.shape, float32),
        Buffer("y", (4, 6, 6), float32),
        Buffer("wt", (taps,), float32),
    )
    steps = [
        masked(t),
        stage(
            "window",
            reduce_(
                "window",
                y,
                (taps,),
                "add",
                lambda c, i, j, n: padded(t, (c, i, j + n - 1), 0.0) * w[n],
            ),
        ),
    ]
    fused = fuse(steps, frozenset({y}), COSTS.repeated)
    assert len(fused) == (1 if taps <= COSTS.repeated else 2)
    given = [MASK, FLOW, w]
    same(steps, fused, given, [y])
    bordered = add_halos(fused, {y, *given}, COSTS.halo)
    same(steps, bordered, given, [y])
    if len(fused) == 2:
        window = bordered[-1]
        assert isinstance(window, FusionGroup)
        (value,) = (o.value for c in window.computations for o in c.outputs)
        assert not any(isinstance(n, Select) for n in postorder(value))


@pytest.mark.parametrize("readers", [1, 2])
def test_a_masked_tensor_vanishes_into_one_reader_and_is_stored_for_several(
    readers: int,
) -> None:
    t = Buffer("t", IMAGE.shape, float32)
    results = [Buffer(f"s{n}", (4,), float32) for n in range(readers)]
    steps = [masked(t)] + [
        stage(b.name, reduce_(b.name, b, (6, 6), "add", lambda c, i, j: t[c, i, j]))
        for b in results
    ]
    fused = fuse(steps, frozenset(results), COSTS.repeated)
    assert len(fused) == (1 if readers == 1 else 3)
    same(steps, fused, [MASK, FLOW], results)


def test_padding_is_no_mask() -> None:
    """Its condition reads no tensor, so all readers recompute it, however often they read."""
    t, y, z = (Buffer(n, IMAGE.shape, float32) for n in "tyz")
    pad = map_("pad", t, lambda c, i, j: padded(IMAGE, (c, i - 1, j), 0.0))
    steps = [
        stage("pad", pad),
        *(
            stage(
                b.name, reduce_(b.name, b, (6,), "add", lambda c, i, j, k: t[c, k, j])
            )
            for b in (y, z)
        ),
    ]
    fused = fuse(steps, frozenset({y, z}), COSTS.repeated)
    assert len(fused) == 2
    same(steps, fused, [IMAGE], [y, z])


@pytest.mark.parametrize("plain", [True, False])
def test_a_row_that_is_read_twice_goes_along_where_its_reads_are_plain(
    plain: bool,
) -> None:
    x, t = Buffer("x", (4, 8), float32), Buffer("t", (4, 8), float32)
    s, m = Buffer("s", (4,), float32), Buffer("m", (4,), float32)
    first = stage("first", map_("t", t, lambda i, j: x[i, j] * x[i, j]))
    rows = stage(
        "rows",
        reduce_("s", s, (8,), "add", lambda i, k: t[i, k]),
        reduce_("m", m, (8,), "max", lambda i, k: t[i, k if plain else 7 - k] - s[i]),
    )
    fused = fuse([first, rows], frozenset({s, m}), COSTS.repeated)
    assert len(fused) == (1 if plain else 2)
    same([first, rows], fused, [x], [s, m])


def test_the_mean_of_rows_that_is_read_before_the_rows_are() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21]>
        g (float[4,32] x, float[32] w) => (float[4,32] y, float[4,1] z, float[4,1] q)
        { a, mean, inv = LayerNormalization(x, w) z = Neg(mean) q = Exp(inv) y = Relu(a) }"""
    )
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((4, 32), (32,)))
    assert not check(load(model.SerializeToString()), {"x": x, "w": w})


def test_nor_for_one_behind_a_host_call_that_may_read_it() -> None:
    steps, *_, u = several()
    (s,) = (b for b in steps[0].writes if b.name == "s")
    call = HostFallback(Operation("Own", (), (), {}, "", 1, "call"))
    listed: list[Step] = [steps[0], call, steps[2]]
    assert len(fuse(listed, frozenset({s, u}), COSTS.repeated)) == 3
    assert len(fuse([steps[0], steps[2]], frozenset({s, u}), COSTS.repeated)) == 1


# -- tensors that live in others


def copied(into: Buffer, tensor: Buffer, at: int = 0) -> FusionGroup:
    """Copy the rows of a tensor into a larger one, starting at row `at`."""
    index: Callable[..., Any] = lambda i, j: (i + at, j)  # noqa: E731
    value: Callable[..., Any] = lambda i, j: tensor[i, j]  # noqa: E731
    return stage("copy", map_("copy", into, value, extents=tensor.shape, index=index))


def doubled(out: Buffer, source: Buffer, at: int = 0) -> FusionGroup:
    value: Callable[..., Any] = lambda i, j: source[i + at, j] * 2.0  # noqa: E731
    return stage("doubled", map_("doubled", out, value))


X, T, V, Z = (Buffer(n, (4, 32), float32) for n in "xtvz")
U, OTHER = Buffer("u", (8, 32), float32), Buffer("o", (4, 32), float32)
# groups, the outputs of the model, and how many copies disappear.
PLACES: dict[str, tuple[list[FusionGroup], set[Buffer], int]] = {
    "both": ([doubled(T, X), doubled(V, T), copied(U, T), copied(U, V, 4), doubled(Z, U, 2)],
             {Z}, 1),
    "both, each made alone": ([doubled(T, X), doubled(V, X), copied(U, T), copied(U, V, 4),
                               doubled(Z, U, 2)], {Z}, 2),
    "a result": ([doubled(T, X), copied(U, T), doubled(Z, U)], {Z, T}, 0),
    "an input": ([copied(U, X), doubled(Z, U)], {Z}, 0),
    "into a result": ([doubled(T, X), copied(U, T), copied(U, X, 4)], {U}, 0),
    "twice": ([doubled(T, X), copied(U, T), copied(U, T, 4), doubled(Z, U, 3)], {Z}, 0),
    "in two larger ones": ([doubled(T, X), copied(V, T), copied(U, T), doubled(Z, U),
                            doubled(OTHER, V)], {Z, OTHER}, 1),
    "in a third": ([doubled(T, X), copied(V, T), doubled(Z, V), copied(U, V), copied(U, Z, 4)],
                   {Z, U}, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", PLACES)
def test_tensors_that_live_in_others(name: str) -> None:
    steps, results, gone = PLACES[name]
    after = concat_in_place(steps, results, COSTS.side_by_side)
    assert len(after) == len(steps) - gone
    if name not in ("a result", "an input"):  # of which half of u is never written
        same(steps, after, [X], sorted(results, key=lambda b: b.name))


# -- halos


def blurred(
    out: Buffer, source: Buffer, outside: float, product: bool = True
) -> FusionGroup:
    """Sums of three rows, `outside` beyond the edges."""
    w = Buffer("w3", (3,), float32)

    def value(i: Expr, j: Expr, m: Expr) -> Expr:
        read = padded(source, (i + m - 1, j), outside)
        return read * w[m] if product else read

    return stage("blurred", reduce_("blurred", out, (3,), "add", value))


# groups, the outputs of the model, and whether t gets a halo.
HALOS: dict[str, tuple[list[FusionGroup], set[Buffer], bool]] = {
    "a convolution": ([doubled(T, X), blurred(Z, T, 0.0)], {Z}, True),
    "of ones": ([doubled(T, X), blurred(Z, T, 1.0)], {Z}, True),
    "and one who has something else there": (
        [doubled(T, X), blurred(Z, T, 0.0), blurred(V, T, 5.0, False)], {Z, V}, True),
    "and one who reads inside": ([doubled(T, X), blurred(Z, T, 0.0), doubled(V, T)], {Z, V}, True),
    "two with different borders": ([doubled(T, X), blurred(Z, T, 0.0), blurred(V, T, 1.0)],
                                   {Z, V}, False),
    "a result": ([doubled(T, X), blurred(Z, T, 0.0)], {Z, T}, False),
    "a sum into it": ([blurred(T, X, 0.0), blurred(Z, T, 0.0)], {Z}, True),
}  # fmt: skip


def test_a_read_under_another_condition_keeps_it() -> None:
    w = Buffer("w3", (3,), float32)

    def value(i: Expr, j: Expr, m: Expr) -> Expr:
        return Select(Lt(j, const(3)), T[i, j], const(0.0, float32)) * w[m]

    cut = stage("cut", reduce_("cut", V, (3,), "add", value))
    steps = [doubled(T, X), blurred(Z, T, 0.0), cut]
    given = [X, *(b for s in steps for b in s.reads if b.name == "w3")]
    same(steps, add_halos(steps, {Z, V, *given}, COSTS.halo), given, [Z, V])


@pytest.mark.parametrize("name", HALOS)
def test_halos(name: str) -> None:
    steps, results, bordered = HALOS[name]
    shared = [s for s in steps if s.name == "blurred"]
    given = list(
        dict.fromkeys([X, *(b for s in shared for b in s.reads if b.name == "w3")])
    )
    after = add_halos(steps, {*results, *given}, COSTS.halo)
    assert (len(after) > len(steps)) is bordered
    same(steps, after, given, sorted(results, key=lambda b: b.name))


@pytest.mark.parametrize("answer", [True, False])
def test_a_halo_of_one_plan_of_several_is_as_decided_and_has_all_its_sides(
    answer: bool,
) -> None:
    steps, results, _ = HALOS["and one who reads inside"]
    given = [X, *(b for s in steps for b in s.reads if b.name == "w3")]
    asked: list[tuple[str, bool]] = []

    def decided(what: str, here: bool) -> bool:
        asked.append((what, here))
        return answer

    after = add_halos(steps, {*results, *given}, 1.0, decided)
    assert asked == [("t.halo", False)]  # it does not pay here
    assert (len(after) > len(steps)) is answer
    same(steps, after, given, sorted(results, key=lambda b: b.name))
    if answer:
        border = next(s for s in after if s.name == "t.halo")
        assert isinstance(border, FusionGroup)
        assert len(border.computations) == 2 * len(T.shape)


# -- Winograd's form


def convolution(out: Buffer, image: Buffer = IMAGE) -> Computation:
    def value(k: Expr, i: Expr, j: Expr, c: Expr, m: Expr, n: Expr) -> Expr:
        return padded(image, (c, i + m - 1, j + n - 1), 0.0) * FILTER[k, c, m, n]

    return reduce_("conv", out, (4, 3, 3), "add", value)


def transformed(steps: Steps, keep: Collection[Buffer]) -> list[Step]:
    """Every convolution that can have Winograd's form, at any cost."""
    forms = WinogradForms((2,), lambda group, constants=(): 0.0)
    return transform_convolutions(steps, forms, {FILTER}, keep)


def with_map() -> tuple[FusionGroup, Buffer, Buffer]:
    t, u = (Buffer(n, (5, 6, 6), float32) for n in "tu")
    return stage("conv", convolution(t), map_("relu", u, lambda *i: t[i] * 2.0)), t, u


def test_a_convolution_with_a_map_behind_it_is_transformed() -> None:
    conv, _, u = with_map()
    after = transformed([conv], {u})
    assert len(after) == 3
    same([conv], after, [IMAGE, FILTER], [u])


def test_its_own_result_stays_where_another_stage_reads_it() -> None:
    conv, t, u = with_map()
    z = Buffer("z", (5, 6, 6), float32)
    steps = [conv, stage("other", map_("other", z, lambda *i: t[i] + 1.0))]
    same(steps, transformed(steps, {u, z}), [IMAGE, FILTER], [u, z])


def test_or_where_it_leaves_the_model() -> None:
    conv, t, u = with_map()
    same([conv], transformed([conv], {t, u}), [IMAGE, FILTER], [t, u])


def test_a_tensor_written_in_parts_is_not_copied_between_them() -> None:
    """A dense block: the second layer reads a longer part of the tensor than the first."""
    wide = Buffer("wide", (4, 6, 6), float32)
    t, u = (Buffer(n, (5, 6, 6), float32) for n in "tu")

    def part(n: int) -> FusionGroup:
        index: Callable[..., Any] = lambda c, i, j: (c + 2 * n, i, j)  # noqa: E731
        value: Callable[..., Any] = lambda c, i, j: IMAGE[c, i, j] + float(n)  # noqa: E731
        return stage(
            f"part{n}", map_("part", wide, value, extents=(2, 6, 6), index=index)
        )

    def half(out: Buffer) -> Computation:
        def value(k: Expr, i: Expr, j: Expr, c: Expr, m: Expr, n: Expr) -> Expr:
            low = padded(wide, (c, i + m - 1, j + n - 1), 0.0)
            return low * FILTER[k, c, m, n]

        return reduce_("half", out, (2, 3, 3), "add", value)

    steps = [part(0), stage("a", half(t)), part(1), stage("b", convolution(u, wide))]
    same(steps, transformed(steps, {t, u}), [IMAGE, FILTER], [t, u])


def test_tiles_read_no_rows_that_are_written_later() -> None:
    """The last tile extends beyond the windows, into a part that another group writes."""
    wide, t = Buffer("wide", (9, 8, 4), float32), Buffer("t", (5, 6, 5), float32)
    image = Buffer("x", (9, 8, 4), float32)

    def rows(start: int, stop: int) -> FusionGroup:
        index: Callable[..., Any] = lambda i, j, c: (i + start, j, c)  # noqa: E731
        value: Callable[..., Any] = lambda i, j, c: image[i + start, j, c] * 2.0  # noqa: E731
        extents = (stop - start, 8, 4)
        return stage(
            f"rows{start}", map_("rows", wide, value, extents=extents, index=index)
        )

    def value(i: Expr, j: Expr, k: Expr, c: Expr, m: Expr, n: Expr) -> Expr:
        return wide[i + m, j + n, c] * FILTER[k, c, m, n]

    conv = stage("conv", reduce_("conv", t, (4, 3, 3), "add", value))
    given = [image, FILTER]
    early, late = [rows(0, 7), conv, rows(7, 9)], [rows(0, 7), rows(7, 9), conv]
    for steps in (early, late):
        after = transformed(steps, {t, wide})
        assert (after[steps.index(conv)] is conv) is (steps is early)
        same(steps, after, given, [t, wide])


# -- windows axis by axis


@pytest.mark.parametrize(
    ("op", "dtype", "exact", "separated"),
    [
        ("max", float32, True, True),
        ("min", float32, True, True),
        ("add", float32, True, False),
        ("mul", float32, True, False),
        ("mul", float32, False, True),
        ("add", int32, True, True),
    ],
)
def test_what_rounds_stays_in_order_under_exact_math(
    op: str, dtype: Any, exact: bool, separated: bool
) -> None:
    x, y = Buffer("x", (9, 9), dtype), Buffer("y", (7, 7), dtype)
    c = reduce_("c", y, (3, 3), op, lambda i, j, m, n: x[i + m, j + n])
    (made,) = separate_windows([stage("s", c)], lambda g: float(-len(g)), exact)
    assert isinstance(made, FusionGroup) and (len(made.computations) == 2) is separated


# -- reductions read by digits


def grouped(reads: Callable[[Buffer, Expr], Expr]) -> tuple[Computation, Computation]:
    """Sums in two groups, and a map over the same dimension."""
    x, w = Buffer("x", (6,), float32), Buffer("w", (8, 3), float32)
    y, z = Buffer("y", (8,), float32), Buffer("z", (8,), float32)
    c = reduce_("c", y, (3,), "add", lambda j, m: x[j // 4 * 3 + m] * w[j, m])
    (j,) = (d for d in c.dims if d.combine == CC)
    return c, Computation("after", (j,), (Output(z, (j.var,), reads(y, j.var)),))


FOLLOWERS: dict[str, tuple[Callable[[Buffer, Expr], Expr], bool]] = {
    "the same point": (lambda y, j: y[j] * 2.0, True),
    "another point": (lambda y, j: y[7 - j] * 2.0, False),
    "two points": (lambda y, j: y[7 - j] + y[j], False),
}


@pytest.mark.parametrize("name", FOLLOWERS)
def test_what_follows_reads_its_own_element(name: str) -> None:
    reads, split = FOLLOWERS[name]
    group = grouped(reads)
    made = split_axes(group, ())
    assert (made != group) is split
    rng = np.random.default_rng(0)
    data = {b: rng.standard_normal(b.shape).astype(np.float32) for b in group[0].inputs}
    z = group[1].outputs[0].tensor
    np.testing.assert_array_equal(evaluate(made, data)[z], evaluate(group, data)[z])


def test_a_dimension_of_one_point_may_be_written_as_0() -> None:
    first, after = grouped(lambda y, j: y[j] * 2.0)
    (o,), i = first.outputs, Var("i", INDEX)
    wide = Buffer("wide", (1, *o.tensor.shape), o.tensor.dtype)
    one = replace(first, dims=(Dim(i, 1, CC), *first.dims),
                  outputs=(replace(o, tensor=wide, index=(i, *o.index)),))  # fmt: skip
    (z,), (j,) = after.outputs, after.dims
    reads = replace(z, value=wide[const(0), j.var] * 2.0)
    follows = replace(after, dims=(Dim(i, 1, CC), j), outputs=(reads,))
    assert split_axes((one, follows), ()) != (one, follows)


def test_a_result_that_others_read_stays() -> None:
    group = grouped(lambda y, j: y[j] * 2.0)
    assert split_axes(group, {group[0].outputs[0].tensor}) == group


# -- kernels that begin at element 0


def test_a_start_is_never_before_the_tensor() -> None:
    """The bounds of `2 * i - i % 2` begin at -1, the writes at 0."""
    x, y = Buffer("x", (4, 3), float32), Buffer("y", (6, 3), float32)
    index: Callable[..., Any] = lambda i, j: (i * 2 - i % 2, j)  # noqa: E731
    c = map_("c", y, lambda i, j: x[i, j], extents=(4, 3), index=index)
    (moved,), offsets = from_zero([c], [y])
    assert all(o >= 0 for o in offsets.values())
    data = {x: np.arange(12, dtype=np.float32).reshape(4, 3)}
    want, got = evaluate(c, data)[y], evaluate(moved, data)[y]
    start = offsets.get(y, 0) // 4
    np.testing.assert_array_equal(
        got.reshape(-1)[: 18 - start], want.reshape(-1)[start:]
    )


def test_a_result_of_another_group_stays_where_it_is() -> None:
    x, y, other = (Buffer(n, (4, 3), float32) for n in ("x", "y", "other"))
    c = map_(
        "c", y, lambda i, j: x[i, j], extents=(2, 3), index=lambda i, j: (i + 1, j)
    )
    (moved,), offsets = from_zero([c], [y, other])
    assert offsets == {y: 3 * 4} and moved.outputs[0].tensor is y


# -- work on constants


def test_a_buffer_that_is_filled_again_between_its_readers_is_filled_at_run_time() -> (
    None
):
    """As where two packed operands share one place."""
    w, v, x, y = (Buffer(n, (4,), float32) for n in "wvxy")
    local = Buffer("l", (4,), float32)
    i = [Var(f"i{n}", INDEX) for n in range(4)]

    def fill(n: int, source: Buffer) -> Any:
        return loop(i[n], 4, Store(local, (i[n],), source[i[n]]))

    def use(n: int) -> Any:
        return loop(i[n], 4, Store(y, (i[n],), y[i[n]] + x[i[n]] * local[i[n]]))

    both = block(fill(0, w), use(1), fill(2, v), use(3))
    kernel = Kernel("k", (w, v, x, y), (y,), Alloc(local, both))
    assert not hoist(kernel, {w, v}).prepare
    once = Kernel(
        "k", (w, v, x, y), (y,), Alloc(local, block(fill(0, w), fill(2, v), use(3)))
    )
    assert len(hoist(once, {w, v}).prepare) == 1


def test_nor_is_one_that_depends_on_inputs_moved() -> None:
    w, x, y = (Buffer(n, (4,), float32) for n in "wxy")
    local = Buffer("l", (4,), float32)
    i, j = Var("i", INDEX), Var("j", INDEX)
    fill = loop(i, 4, Store(local, (i,), w[i] + x[i]))
    use = loop(j, 4, Store(y, (j,), local[j]))
    kernel = Kernel("k", (w, x, y), (y,), Alloc(local, block(fill, use)))
    assert not hoist(kernel, {w}).prepare
    assert len(hoist(kernel, {w, x}).prepare) == 1


# -- layouts


def test_an_operator_of_another_domain_is_no_convolution() -> None:
    """One called Conv without an input has none to lay out."""
    y = Value("y", float32, (1, 2, 3, 4))
    op = Operation("Conv", (), (y,), {}, "com.acme", 1, "own")
    made = lower(Graph("g", (), (y,), (op,)))
    assert isinstance(made.steps[0], HostFallback)


def test_same_finds_what_differs() -> None:
    x, y = Buffer("x", (4,), float32), Buffer("y", (4,), float32)
    one, two = (stage("s", map_("s", y, lambda i, n=n: x[i] * n)) for n in (1.0, 2.0))
    with pytest.raises(AssertionError):
        same([one], [two], [x], [y])
    with pytest.raises(VerifyError):
        same([one], [], [x], [y])
