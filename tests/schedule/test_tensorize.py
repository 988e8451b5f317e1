"""blockize and tensorize: matches, refusals with their messages, and later steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.base.dtypes import DType, float32, int8, int32
from tilewright.base.errors import ScheduleError
from tilewright.compute.build import cast
from tilewright.compute.nodes import Computation
from tilewright.compute.reducer import Reducer
from tilewright.expr.nodes import INDEX, Expr, Var, const
from tilewright.loops.intrinsic import (
    Extent,
    Formal,
    HardwareCall,
    TensorIntrinsic,
    decl_tensor_intrinsic,
    hardware_intrinsic,
)
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Kernel, Store, loop
from tilewright.loops.verify import verify
from tilewright.operators import Buffer, map_, reduce_
from tilewright.schedule import Schedule

Inputs = Sequence[Formal]


def _gemm(inputs: Inputs, outputs: Inputs) -> tuple[HardwareCall, ...]:
    """The lowering of the talk: inputs first, then the output."""
    ww, xx = (t.access_ptr("r") for t in inputs)
    zz, changed = outputs[0].access_ptr("w"), outputs[0].access_ptr("rw")
    compute = hardware_intrinsic("gemm8x8", ww, xx, zz)
    reset = hardware_intrinsic("fill_zero", zz)
    return compute, reset, hardware_intrinsic("fuse_gemm8x8_add", ww, xx, changed)


def _declare_gemm(
    name: str, lower_: Callable[[Inputs, Inputs], Any], **rest: Any
) -> TensorIntrinsic:
    """`y[i, j] = sum over k of w[i, k] * x[j, k]`, 8x8, as in the talk."""
    w, x, y = (Buffer(n, (8, 8), float32) for n in "wxy")
    meaning = reduce_("y", y, (8,), "add", lambda i, j, k: w[i, k] * x[j, k])
    return decl_tensor_intrinsic(meaning, lower_, name=name, **rest)


def _strided(inputs: Inputs, outputs: Inputs) -> tuple[HardwareCall | None, ...]:
    """Any distance between rows, no whole product."""
    (w, x), (y,) = inputs, outputs
    pointers = [y.access_ptr("rw"), w.access_ptr("r"), x.access_ptr("r")]
    step = hardware_intrinsic(
        "gemm_rows", *pointers, y.strides[0], w.strides[0], x.strides[0]
    )
    return None, hardware_intrinsic("zero_rows", y.access_ptr("w"), y.strides[0]), step


GEMM = _declare_gemm("test.gemm8x8", _gemm)
ROWS = _declare_gemm("test.gemm_rows", _strided)


def _copy_meaning(rows: int, columns: int) -> Computation:
    x, y = Buffer("x", (rows, columns), float32), Buffer("y", (rows, columns), float32)
    return map_("copy", y, lambda i, j: x[i, j])


def _lower_copy(inputs: Inputs, outputs: Inputs) -> HardwareCall:
    (x,), (y,) = inputs, outputs
    pointers = y.access_ptr("w"), x.access_ptr("r")
    return hardware_intrinsic(
        "copy", *pointers, x.strides[0], y.strides[0], Extent(0), Extent(1)
    )


COPY = decl_tensor_intrinsic(
    _copy_meaning(8, 8), _lower_copy, name="test.copy", free=("i", "j")
)


def _product(
    m: int,
    n: int,
    k: int,
    value: Callable[[Expr, Expr], Expr] = lambda a, b: a * b,
    **options: Any,
) -> Schedule:
    """`c[i, j] = sum over k of a[i, k] * b[j, k]`."""
    dtype: DType = options.get("dtype", float32)
    op: str = options.get("op", "add")
    a, b, c = (
        Buffer("a", (m, k), dtype),
        Buffer("b", (n, k), dtype),
        Buffer("c", (m, n), dtype),
    )
    mm = reduce_("mm", c, (k,), op, lambda i, j, k: value(a[i, k], b[j, k]))
    return Schedule(lower("mm", [mm], params=[a, b, c], outputs=[c]))


def _tiled(m: int, n: int, k: int, **options: Any) -> Schedule:
    """Tiles of 8x8x8, the reduction's outer loop outermost in each."""
    s = _product(m, n, k, **options)
    s.tile("mm.i", "mm.j", 8, 8)
    s.decompose_reduction("c", "mm.i.i")
    s.split("mm.k", 8)
    s.reorder("mm.k.o", "mm.i.i", "mm.j.i", "mm.k.i")
    return s


# -- matches


def test_the_program_of_the_talk(check_same, golden) -> None:  # type: ignore[no-untyped-def]
    """The step inside of ko, the start before it, on compact copies of the operands."""
    s = _product(16, 24, 32)
    plain = s.kernel
    _, jo, ii, ji = s.tile("mm.i", "mm.j", 8, 8)
    acc = s.cache_write("c", jo, "stack")
    s.decompose_reduction(acc, ii)
    ko, ki = s.split("mm.k", 8)
    s.reorder(ko, ii, ji, ki)
    s.cache_read("a", ko)
    s.cache_read("b", ko)
    assert s.tensorize(ii, GEMM) == "fuse_gemm8x8_add"
    golden("tensorize_talk", str(s))
    check_same(plain, s)


def test_a_whole_reduction(check_same) -> None:  # type: ignore[no-untyped-def]
    s = _product(8, 8, 8)
    plain = s.kernel
    assert s.tensorize("mm.i", GEMM) == "gemm8x8"
    assert "gemm8x8(a[0, 0], b[0, 0], c[0, 0])" in str(s)
    check_same(plain, s)


def test_a_whole_reduction_of_an_intrinsic_that_only_steps(check_same) -> None:  # type: ignore[no-untyped-def]
    s = _product(8, 8, 8)
    plain = s.kernel
    assert s.tensorize("mm.i", ROWS) == "gemm_rows"
    assert str(s).splitlines()[1:] == [
        "  zero_rows(c[0, 0])",
        "  gemm_rows(c[0, 0], a[0, 0], b[0, 0])",
    ]
    check_same(plain, s)


def test_strides_that_are_passed_may_be_any(check_same) -> None:  # type: ignore[no-untyped-def]
    s = _tiled(16, 24, 32)
    plain = _product(16, 24, 32).kernel
    s.tensorize("mm.i.i", ROWS)
    unit = next(x for x in _units(s) if x.name == "gemm_rows")
    assert [o.strides for o in unit.operands] == [(32, 1), (32, 1), (24, 1)]
    check_same(plain, s)


def _units(s: Schedule) -> list[Any]:
    from tilewright.loops.nodes import Unit
    from tilewright.loops.walk import walk

    return [p.stmt for p in walk(s.kernel.body) if isinstance(p.stmt, Unit)]


@pytest.mark.parametrize(
    "order",
    [
        ("mm.j.i", "mm.i.i", "mm.k.i"),
        ("mm.k.i", "mm.j.i", "mm.i.i"),
        ("mm.i.i", "mm.k.i", "mm.j.i"),
    ],
    ids=["jik", "kji", "ikj"],
)
def test_loops_may_be_in_any_order(check_same, order: tuple[str, ...]) -> None:  # type: ignore[no-untyped-def]
    s = _tiled(16, 16, 16)
    s.reorder(*order)
    s.tensorize(order[0], ROWS)
    assert "gemm_rows(c[mm.i.o * 8, mm.j.o * 8], a[mm.i.o * 8, mm.k.o * 8]," in str(s)
    check_same(_product(16, 16, 16).kernel, s)


def test_factors_may_be_swapped(check_same) -> None:  # type: ignore[no-untyped-def]
    s = _product(8, 8, 8, value=lambda a, b: b * a)
    plain = s.kernel
    s.tensorize("mm.i", GEMM)
    assert "gemm8x8(a[0, 0], b[0, 0], c[0, 0])" in str(s)
    check_same(plain, s)


def test_the_operand_that_a_transposed_result_needs(check_same) -> None:  # type: ignore[no-untyped-def]
    """c[j, i] = sum a[i, k] b[j, k]: the roles of a and b are exchanged."""
    a, b, c = (Buffer(n, (8, 8), float32) for n in "abc")
    mm = reduce_(
        "mm",
        c,
        (8,),
        "add",
        lambda i, j, k: a[i, k] * b[j, k],
        index=lambda i, j: (j, i),
    )
    s = Schedule(lower("mm", [mm], params=[a, b, c], outputs=[c]))
    plain = s.kernel
    s.tensorize("mm.i", GEMM)
    assert "gemm8x8(b[0, 0], a[0, 0], c[0, 0])" in str(s)
    check_same(plain, s)


def test_copies_of_any_extents(check_same) -> None:  # type: ignore[no-untyped-def]
    x, y = Buffer("x", (5, 7), float32), Buffer("y", (5, 7), float32)
    s = Schedule(
        lower("f", [map_("f", y, lambda i, j: x[i, j])], params=[x, y], outputs=[y])
    )
    plain = s.kernel
    s.tensorize("f.i", COPY)
    assert _units(s)[0].intrinsic.sizes == (5, 7)
    check_same(plain, s)


def test_loops_that_are_one_move_by_one_stride(check_same) -> None:  # type: ignore[no-untyped-def]
    x, y = Buffer("x", (5, 3, 2), float32), Buffer("y", (5, 3, 2), float32)
    copy = map_("f", y, lambda i, j, k: x[i, j, k])
    s = Schedule(lower("f", [copy], params=[x, y], outputs=[y]))
    plain = s.kernel
    s.fuse("f.j", "f.k")
    s.tensorize("f.i", COPY)
    (unit,) = _units(s)
    assert unit.intrinsic.sizes == (5, 6)
    assert [o.strides for o in unit.operands] == [(6, 1), (6, 1)]
    check_same(plain, s)


# -- refusals and their messages


REFUSALS: list[tuple[str, Callable[[], Schedule], str, TensorIntrinsic, str]] = [
    (
        "extent",
        lambda: _product(8, 16, 8),
        "mm.i",
        GEMM,
        r"the compute of test\.gemm8x8 has dimensions i < 8 \(cc\), j < 8 \(cc\), k < 8 \(pw\); "
        r"found loops mm\.i < 8, mm\.j < 16, mm\.k < 8",
    ),
    (
        "stride",
        lambda: _tiled(16, 16, 16),
        "mm.i.i",
        GEMM,
        r"w has stride 8 along axis 0, found 16 in a\[",
    ),
    (
        "transposed",
        lambda: _product(8, 8, 8, value=lambda a, b: a + b),
        "mm.i",
        GEMM,
        r"computes w\[i, k\] \* x\[j, k\], found a\[mm\.i, mm\.k\] \+ b\[mm\.j, mm\.k\]",
    ),
    (
        "reducer",
        lambda: _product(8, 8, 8, op="max"),
        "mm.i",
        GEMM,
        r"starts from 0\.0, found -inf",
    ),
    (
        "dtype",
        lambda: _product(
            8,
            8,
            8,
            dtype=int8,
            value=lambda a, b: cast(cast(a, int32) * cast(b, int32), int8),
        ),
        "mm.i",
        GEMM,
        r"starts from 0\.0, found 0_i8",
    ),
    (
        "map",
        lambda: _product(8, 8, 8),
        "mm.i",
        COPY,
        r"test\.copy is one store in a nest of loops, found 2 statements",
    ),
    (
        "offset",
        lambda: _tiled(16, 16, 16),
        "mm.k.o",
        ROWS,
        r"found loops mm\.k\.o < 2, mm\.i\.i < 8, mm\.j\.i < 8, mm\.k\.i < 8",
    ),
    (
        "no-such-part",
        lambda: _tiled(16, 16, 16),
        "mm.i.i.init",
        decl_tensor_intrinsic(
            ROWS.description,
            lambda i, o: (
                hardware_intrinsic("whole", o[0].access_ptr("w")),
                None,
                None,
            ),
            name="test.whole_only",
        ),
        r"this is the reset of test\.whole_only, which has none",
    ),
]


@pytest.mark.parametrize(
    ("make", "loop", "intrinsic", "message"),
    [row[1:] for row in REFUSALS],
    ids=[row[0] for row in REFUSALS],
)
def test_what_differs_is_said(
    make: Callable[[], Schedule], loop: str, intrinsic: TensorIntrinsic, message: str
) -> None:
    s = make()
    before = s.kernel
    with pytest.raises(ScheduleError, match=message) as caught:
        s.tensorize(loop, intrinsic)
    assert caught.value.where == f"loop {loop}"
    assert s.kernel is before


def test_alignment_is_checked() -> None:
    aligned = _declare_gemm("test.gemm_aligned", _strided, alignment={"w": 64})
    s = _tiled(16, 16, 24)
    with pytest.raises(
        ScheduleError, match=r"w starts at a multiple of 64 bytes, found a\[.*of 32"
    ):
        s.tensorize("mm.i.i", aligned)


def test_memory_scopes_are_checked() -> None:
    scoped = _declare_gemm(
        "test.gemm_scoped", _strided, scopes=[("chip", "chip", "global")]
    )
    s = _product(8, 8, 8)
    with pytest.raises(
        ScheduleError,
        match=r"takes w in chip, x in chip, y in global; found w in global, x in global",
    ):
        s.tensorize("mm.i", scoped)


def test_an_output_that_is_an_input_is_refused() -> None:
    x = Buffer("x", (16, 8), float32)
    shift = map_("shift", x, lambda i, j: x[i + 8, j], extents=(8, 8))
    s = Schedule(lower("f", [shift], params=[x], outputs=[x]))
    with pytest.raises(
        ScheduleError, match="its output is separate from its inputs, found x as both"
    ):
        s.tensorize("shift.i", COPY)


def test_a_loop_of_unknown_extent_is_no_dimension() -> None:
    """Free dimensions may have any extent, but a constant one."""
    x, y = Buffer("x", (8, 8), float32), Buffer("y", (8, 8), float32)
    i, j = Var("i", INDEX), Var("j", INDEX)
    triangle = loop(i, 8, loop(j, i + 1, Store(y, (i, j), x[i, j])))
    with pytest.raises(ScheduleError, match=r"found loops i < 8, j < i \+ 1"):
        Schedule(Kernel("f", (x, y), (y,), triangle)).tensorize("i", COPY)


def test_a_reducer_of_the_same_name_is_not_enough() -> None:
    a, b = Var("a", float32), Var("b", float32)
    odd = Reducer("add", (a,), (b,), (a + b + 1.0,), (const(0.0, float32),))
    x, y, c = (Buffer(n, (8, 8), float32) for n in "xyc")
    mm = reduce_("mm", c, (8,), odd, lambda i, j, k: x[i, k] * y[j, k])
    s = Schedule(lower("mm", [mm], params=[x, y, c], outputs=[c]))
    with pytest.raises(
        ScheduleError, match="reduces by add of float32, found another add of float32"
    ):
        s.tensorize("mm.i", GEMM)


def test_rows_that_coincide_are_no_tile() -> None:
    """c[j] += a[i, k] * b[j, k]: rows i would all be the same row of c."""
    a, b, c = (
        Buffer("a", (8, 8), float32),
        Buffer("b", (8, 8), float32),
        Buffer("c", (8,), float32),
    )
    mm = reduce_("mm", c, (8, 8), "add", lambda j, i, k: a[i, k] * b[j, k])
    s = Schedule(lower("f", [mm], params=[a, b, c], outputs=[c]))
    s.decompose_reduction("c", "mm.j")
    with pytest.raises(
        ScheduleError,
        match=r"elements of y are distinct, found strides \(0, 1\) in c, where they",
    ):
        s.tensorize("mm.j", ROWS)


def test_an_unknown_intrinsic_is_named_with_the_known_ones() -> None:
    with pytest.raises(
        ScheduleError, match=r"there is no intrinsic 'nothing'.*test\.gemm8x8"
    ):
        _product(8, 8, 8).tensorize("mm.i", "nothing")


# -- units under later steps


def test_nothing_reaches_into_a_unit() -> None:
    s = _tiled(16, 16, 16)
    s.tensorize("mm.i.i", ROWS)
    for step in (
        lambda: s.split("mm.i.i", 4),
        lambda: s.unroll("mm.k.i"),
        lambda: s.reorder("mm.j.i", "mm.i.i"),
        lambda: s.tensorize("mm.j.i", ROWS),
        lambda: s.blockize("mm.j.i"),
    ):
        with pytest.raises(ScheduleError, match="it is inside gemm_rows, which is one"):
            step()


def test_loops_around_a_unit_are_transformed(check_same) -> None:  # type: ignore[no-untyped-def]
    s = _tiled(32, 16, 16)
    s.tensorize("mm.i.i", ROWS)
    s.split("mm.i.o", 2)
    s.fuse("mm.i.o.i", "mm.j.o")
    s.parallel("mm.i.o.o")
    s.unroll("mm.k.o")
    verify(s.kernel)
    check_same(_product(32, 16, 16).kernel, s)


def test_staging_around_a_unit_moves_its_operands(check_same) -> None:  # type: ignore[no-untyped-def]
    s = _tiled(16, 16, 16)
    s.tensorize("mm.i.i", ROWS)
    s.cache_write("c", "mm.j.o", "stack")
    s.cache_read("a", "mm.k.o")
    unit = next(x for x in _units(s) if x.name == "gemm_rows")
    assert [(o.buffer.name, o.strides) for o in unit.operands] == [
        ("a.local", (8, 1)),
        ("b", (16, 1)),
        ("c.acc", (8, 1)),
    ]
    check_same(_product(16, 16, 16).kernel, s)


def test_a_step_that_would_break_a_unit_is_refused() -> None:
    """Inlining would make the machine multiply by another expression."""
    a, b, t, c = (Buffer(n, (8, 8), float32) for n in "abtc")
    twice = map_("t", t, lambda i, k: a[i, k] * 2.0)
    mm = reduce_("mm", c, (8,), "add", lambda i, j, k: t[i, k] * b[j, k])
    s = Schedule(lower("f", [twice, mm], params=[a, b, c], outputs=[c]))
    s.tensorize("mm.i", GEMM)
    with pytest.raises(
        ScheduleError,
        match=r"compute_inline: test\.gemm8x8 could not be used any more: .*computes",
    ) as caught:
        s.compute_inline("t")
    assert caught.value.where == "unit gemm8x8"


def test_a_block_is_kept_together(check_same) -> None:  # type: ignore[no-untyped-def]
    s = _product(16, 16, 8)
    plain = s.kernel
    s.split("mm.j", 8)
    s.blockize("mm.j.i", "columns")
    assert "block columns:" in str(s)
    with pytest.raises(
        ScheduleError, match="it is inside columns, which is one indivisible unit"
    ):
        s.unroll("mm.k")
    s.reorder("mm.j.o", "mm.i")
    check_same(plain, s)
    s = _product(16, 16, 8)
    s.blockize("mm.j")
    assert "block mm.j:" in str(s)


def test_a_unit_in_a_block_moves_its_operands_too(check_same) -> None:  # type: ignore[no-untyped-def]
    s = _tiled(16, 16, 16)
    s.tensorize("mm.i.i", ROWS)
    s.blockize("mm.k.o", "steps")
    s.cache_read("a", "mm.j.o")
    unit = next(x for x in _units(s) if x.name == "gemm_rows")
    assert [o.buffer.name for o in unit.operands] == ["a.local", "b", "c"]
    verify(s.kernel)
    check_same(_product(16, 16, 16).kernel, s)


def test_other_operators_are_described_too(check_same) -> None:  # type: ignore[no-untyped-def]
    x, out = Buffer("x", (4, 16), float32), Buffer("o", (16,), float32)
    meaning = reduce_("maxima", out, (4,), "max", lambda i, k: x[k, i])
    declared = decl_tensor_intrinsic(
        meaning,
        lambda i, o: (None, None, hardware_intrinsic("maxima", o[0].access_ptr("rw"))),
        name="test.maxima",
        free=("k",),
    )
    a, b = Buffer("a", (9, 16), float32), Buffer("b", (16,), float32)
    top = reduce_("top", b, (9,), "max", lambda i, k: a[k, i])
    s = Schedule(lower("top", [top], params=[a, b], outputs=[b]))
    plain = s.kernel
    s.decompose_reduction("b", "top.i")
    s.tensorize("top.i", declared)
    check_same(plain, s)


@settings(max_examples=25, deadline=None)
@given(
    tiles=st.tuples(*[st.integers(1, 2)] * 3),
    order=st.permutations(["mm.i.i", "mm.j.i", "mm.k.i"]),
    swapped=st.booleans(),
    stage=st.sets(st.sampled_from("abc")),
    first=st.booleans(),
)
def test_any_tiling_any_order_any_staging(
    tiles: tuple[int, int, int],
    order: list[str],
    swapped: bool,
    stage: set[str],
    first: bool,
) -> None:
    """Before or after the operands are staged: the same program as the plain nest."""
    m, n, k = (8 * t for t in tiles)
    s = _tiled(m, n, k, value=lambda a, b: b * a if swapped else a * b)
    s.reorder(*order) if order != ["mm.i.i", "mm.j.i", "mm.k.i"] else None
    if first:
        s.tensorize(order[0], ROWS)
    for name in sorted(stage - {"c"}):
        s.cache_read(name, "mm.k.o")
    if "c" in stage:
        s.cache_write("c", "mm.j.o")
    if not first:
        s.tensorize(order[0], ROWS)
    verify(s.kernel)
    assert {"gemm_rows", "zero_rows"} == {unit.name for unit in _units(s)}
    s.verify()
