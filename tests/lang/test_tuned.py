"""Programs of every notation are tuned by one method, and later builds use the results."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import halide as hl
from tilewright import lift, mdh, te
from tilewright.base import events
from tilewright.base.errors import InputError, ScheduleError, TilewrightWarning
from tilewright.driver import program_tuning
from tilewright.driver.in_network import NetworkTimes
from tilewright.driver.tasks import task_of_kernel
from tilewright.driver.tuning import How
from tilewright.lang import mdh as words
from tilewright.lang.function import Function
from tilewright.lang.lift import Join, Map, Reduce, Zip, add, f32, fun, lengths, mul
from tilewright.tune.base import Candidate, Measurement, Status, Trial
from tilewright.tune.measure.options import Timing
from tilewright.tune.records.database import Records
from tilewright.tune.tuner import TaskOutcome

QUICK = Timing(round_seconds=1e-4, seconds=0.01)
FEW = How("random", "analytic", timing=QUICK)
N = 16
rng = np.random.default_rng(0)
LEFT, RIGHT = rng.standard_normal((2, N, N)).astype(np.float32)
PRODUCT = LEFT @ RIGHT


def te_product(**options: Any) -> Any:
    s, args = rows(N)
    return te.build(s, args, threads=1, **options)


def rows(n: int, name: str = "C") -> tuple[te.Schedule, list[te.Tensor]]:
    A, B = te.placeholder((n, n), name="A"), te.placeholder((n, n), name="B")
    k = te.reduce_axis((0, n), name="k")
    C = te.compute((n, n), lambda y, x: te.sum(A[y, k] * B[k, x], axis=k), name=name)
    return te.create_schedule(C.op), [A, B, C]


@te.template("tuned.product")
def product(n: int) -> tuple[te.Schedule, list[te.Tensor]]:
    s, args = rows(n)
    C = args[2]
    cfg = te.get_config()
    cfg.define_split("x", s[C].op.axis[1], num_outputs=2)
    _, inner = cfg["x"].apply(s, C, s[C].op.axis[1])
    cfg.define_annotate("inner", [inner], "try_unroll_vec")
    cfg["inner"].apply(s, C, [inner])
    return s, args


def te_template(**options: Any) -> Any:
    return te.build(*product(N), threads=1, **options)


EXPRESSION = (
    words.out_view[words.float32](C=[lambda y, x, k: (y, x)])
    @ words.md_hom[N, N, N](
        words.mul, (words.cc, words.cc, words.pw(words.add)), name="product"
    )
    @ words.inp_view[words.float32, words.float32](
        A=[lambda y, x, k: (y, k)], B=[lambda y, x, k: (k, x)]
    )
)


def mdh_expression(**options: Any) -> Any:
    return mdh.build(EXPRESSION, threads=1, **options)


def mdh_parameters(**options: Any) -> Any:
    space = mdh.parameter_space(EXPRESSION, lanes=8, cores=1)
    return mdh.build(space, threads=1, **options)


def halide_func() -> hl.Func:
    x, y = hl.vars("x y")
    a, b = (hl.Buffer(data, name=n) for n, data in (("a", LEFT), ("b", RIGHT)))
    r = hl.RDom([(0, N)], "r")
    f = hl.Func("f")
    f[x, y] += a[r, y] * b[x, r]
    return f


def halide_product(**options: Any) -> Any:
    return halide_func().compile_jit([N, N], threads=1, **options)


m, n = lengths("m n")


@fun
def mv(A: f32[m, n], v: f32[n]):
    return A | Map(lambda row: Zip(row, v) | Map(mul) | Reduce(add, 0.0)) | Join


def lift_rows(**options: Any) -> Any:
    return lift.build(mv, sizes={"m": N, "n": N}, threads=1, **options)


def expect_right(function: Any) -> None:
    if len(function.functions[0].kernel.params[1].shape) == 1:
        got = np.empty(N, np.float32)
        function(LEFT, RIGHT[0].copy(), got)
        np.testing.assert_allclose(got, LEFT @ RIGHT[0], rtol=1e-4, atol=1e-4)
        return
    result = np.empty((N, N), np.float32)
    function(LEFT, RIGHT, result)
    np.testing.assert_allclose(result, PRODUCT, rtol=1e-4, atol=1e-4)


@pytest.fixture
def found_better(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another schedule than the default is taken as twice as fast: no time decides."""
    monkeypatch.setattr(program_tuning, "improved", lambda o: [*map(_another, o)])
    monkeypatch.setattr(
        program_tuning, "kept", lambda found, *_: (found, NetworkTimes(2.0, 1.0, {}))
    )


def _another(o: TaskOutcome) -> TaskOutcome:
    default = o.task.space.default()
    drawn = random.Random(0)
    near = (o.task.space.neighbor(default, drawn) for _ in range(99))
    other = next(c for c in near if c != default)
    best = Trial(other, Measurement(Status.OK, (1e-6,)))
    slow = Trial(default, Measurement(Status.OK, (2e-6,)))
    return dataclasses.replace(o, best=best, default=slow, confidence=1.0)


@pytest.fixture
def records(tmp_path: Path) -> Path:
    return tmp_path / "records.sqlite"


PROGRAMS: list[Callable[..., Any]] = [
    te_product,
    te_template,
    mdh_expression,
    mdh_parameters,
    halide_product,
    lift_rows,
]


@pytest.mark.sampled(7)
@pytest.mark.parametrize("build", PROGRAMS, ids=lambda b: b.__name__)
def test_a_program_is_tuned_and_built_again(
    build: Callable[..., Any], records: Path, found_better: None
) -> None:
    with events.record() as log:
        tuned = build().tune(trials=3, how=FEW, records=records)
    assert len([e for e in log if e.kind == "trial"]) == 3
    assert (tuned.tuned.trials, tuned.tuned.gain) == (3, 2.0)
    expect_right(tuned)
    with events.record() as log:
        again = build(records=records)
    assert [e.fields["gain"] for e in log if e.kind == "record-used"] == [2.0]
    assert "tuned: record of" in again.why()
    expect_right(again)
    with events.record() as log:
        plain = build()
    assert not [e for e in log if e.kind == "record-used"]
    assert "tuned: record of" not in plain.why()
    expect_right(plain)


def test_what_is_not_faster_stays_as_it_was(
    records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        program_tuning, "kept", lambda *_: ([], NetworkTimes(1.0, 2.0, {}))
    )
    tuned = te_product().tune(trials=2, how=FEW, records=records)
    assert tuned.tuned.gain == 1.0
    assert tuned.source() == te_product().source()
    with events.record() as log:
        te_product(records=records)
    assert not [e for e in log if e.kind == "record-used"]


def test_both_are_compared_on_the_given_arrays(
    records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outputs first in the arguments; nothing is made to look faster here."""
    given: dict[str, np.ndarray] = {}
    compare = program_tuning.kept

    def kept(found: Any, build: Any, feeds: dict[str, np.ndarray]) -> Any:
        given.update(feeds)
        return compare(found, build, feeds)

    monkeypatch.setattr(program_tuning, "kept", kept)
    s, (A, B, C) = rows(N)
    f = te.build(s, [C, A, B], threads=1)
    out = np.zeros((N, N), np.float32)
    tuned = f.tune(out, LEFT, RIGHT, trials=3, how=FEW, records=records)
    assert tuned.tuned is not None and tuned.tuned.gain >= 1.0
    assert given["A"] is LEFT and given["B"] is RIGHT
    assert not out.any()
    tuned(out, LEFT, RIGHT)
    np.testing.assert_allclose(out, PRODUCT, rtol=1e-4, atol=1e-4)


# --------------------------------------------------------------------------- keys of records


def key(function: Any) -> str:
    return str(function.functions[0].origin.program.key.text)


def test_notations_share_the_records_of_one_program() -> None:
    """The key contains the names of Computations and dimensions, not those of tensors."""
    s, args = rows(N, "product")
    same = te.build(s, args, auto=True, threads=1)
    assert key(same) == key(mdh.build(EXPRESSION, threads=1))
    s, args = rows(N, "other")
    assert key(te.build(s, args, auto=True, threads=1)) != key(same)


def test_a_record_belongs_to_one_way_of_scheduling() -> None:
    """What beats the nests as written need not beat the target's default, nor a template's."""
    s, args = rows(N)
    kinds = te_product(), te.build(s, args, auto=True, threads=1), te_template()
    assert len({key(f) for f in kinds}) == 3
    assert key(te_template()) == key(te_template())


def test_a_template_with_other_knobs_has_other_records() -> None:
    @te.template("tuned.product")
    def other(n: int) -> tuple[te.Schedule, list[te.Tensor]]:
        s, args = rows(n)
        cfg = te.get_config()
        cfg.define_knob("unroll", [False, True])
        if cfg["unroll"].val:
            s[args[2]].unroll(s[args[2]].op.axis[0])
        return s, args

    changed = te.build(*other(N), threads=1)
    assert key(changed) != key(te_template())


def te_tiled(width: int = 4, **options: Any) -> Any:
    s, args = rows(N)
    yo, _, _, xi = s[args[2]].tile(*s[args[2]].op.axis, 4, width)
    s[args[2]].parallel(yo)
    s[args[2]].vectorize(xi)
    return te.build(s, args, threads=1, **options)


def halide_tiled(**options: Any) -> Any:
    f, x = halide_func(), hl.Var("x")
    f.update().vectorize(x, 4)
    return f.compile_jit([N, N], threads=1, **options)


def mdh_tiled(**options: Any) -> Any:
    s = mdh.schedule(EXPRESSION)
    s.split("product.y", 4)
    return mdh.build(s, threads=1, **options)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("build", [te_tiled, halide_tiled, mdh_tiled])
def test_of_a_schedule_by_hand_the_factors_are_tuned(
    build: Callable[..., Any], records: Path, found_better: None
) -> None:
    usual = build()
    tuned = usual.tune(trials=4, how=FEW, records=records)
    assert tuned.source() != usual.source()
    steps = [f.record.trace.steps for f in (usual, tuned)]
    assert [s.primitive for s in steps[0]] == [s.primitive for s in steps[1]]
    expect_right(tuned)
    with events.record() as log:
        assert build().source() == usual.source()  # it is as it is written
        assert build(records=records).source() == tuned.source()
    assert len([e for e in log if e.kind == "record-used"]) == 1


def test_factors_that_a_primitive_refuses_are_no_candidates() -> None:
    space = te_tiled(width=8).origin.program.space
    assert [p.name for p in space.parameters] == ["C.y", "C.x"]
    wide = Candidate("", {"C.y": 4, "C.x": 32})
    with pytest.raises(ScheduleError, match=r"factor 32 is not in 1\.\.16"):
        space.schedule(wide)
    default = space.schedule(space.default()).schedule
    assert str(default.kernel) == te_tiled(width=8).source()


@pytest.mark.slow
def test_a_scatter_without_lines_is_tuned(records: Path, found_better: None) -> None:
    tuned = histogram(threads=1).tune(trials=3, how=FEW, records=records)
    assert tuned.tuned.trials == 3
    counts = np.zeros(4, np.int32)
    tuned(LEFT, counts)
    np.testing.assert_array_equal(
        counts, np.bincount(np.clip(LEFT.astype(np.int32), 0, 3).ravel(), minlength=4)
    )


def test_further_lines_are_kept(records: Path) -> None:
    """A schedule that continues a template's defaults is the user's, and is not replaced."""
    s, args = product(N)
    s[args[2]].parallel(s[args[2]].op.axis[0])
    with pytest.raises(InputError, match="nothing to choose"):
        te.build(s, args).tune(trials=1)


def test_a_record_that_is_not_possible_is_not_used(records: Path) -> None:
    program = te_product().origin.program
    gone = Candidate("gone", {})
    with Records(records) as kept:
        run = kept.begin("test")
        kept.choose(run, program.key.text, "C", gone, 1e-6, 2e-6)
    with pytest.warns(TilewrightWarning, match="is not used because its schedule"):
        f = te_product(records=records)
    expect_right(f)


def test_a_program_without_sketches_is_built_beside_records(records: Path) -> None:
    with Records(records) as kept:
        run = kept.begin("test")
        text = te_product().origin.program.key.text
        kept.choose(run, text, "C", Candidate("plain", {}), 1e-6, 2e-6)
    assert "by hand" in histogram(records=records).why()


def test_a_kernel_that_is_compiled_says_so(records: Path) -> None:
    kernel = te.lower(*rows(N))
    task = task_of_kernel(kernel, threads=1)
    with Records(records) as kept:
        run = kept.begin("test")
        kept.choose(run, task.key, "C", task.space.default(), 1e-6, 2e-6)
    with events.record() as log:
        exe = tw.compile(kernel, threads=1, records=records)
        Function(kernel, threads=1, records=records)
        tw.compile(kernel, threads=1, records=False)
    assert len([e for e in log if e.kind == "record-used"]) == 2
    np.testing.assert_allclose(exe(LEFT, RIGHT), PRODUCT, rtol=1e-4, atol=1e-4)


# --------------------------------------------------------------------------- what is refused


def by_hand() -> Any:
    s, args = rows(N)
    s[args[2]].parallel(s[args[2]].op.axis[0])
    return te.build(s, args)


def of_open_sizes() -> Any:
    return te.build(*rows(te.var("n")))  # type: ignore[arg-type]


def histogram(**options: Any) -> Any:
    x, r = hl.Var("x"), hl.RDom([(0, N), (0, N)], "r")
    h = hl.Func("h")
    h[x] = 0
    h[hl.clamp(hl.i32(hl.Buffer(LEFT, name="a")[r.x, r.y]), 0, 3)] += 1
    return h.compile_jit([4], **options)


def several() -> Any:
    A = te.placeholder((4,), name="A")
    B = te.compute((4,), lambda i: A[i] + 1.0, name="B")
    call = lambda ins, outs: te.call_packed(np.copyto, *outs, *ins)  # noqa: E731
    C = te.extern((4,), [B], call, name="C")
    D = te.compute((4,), lambda i: C[i] + 1.0, name="D")
    return te.build(te.create_schedule(D.op), [A, D])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (by_hand, "nothing to choose"),
        (of_open_sizes, "nothing to choose"),
        (lambda: te_product(target="interp"), "nothing to choose"),
        (several, "2 kernels, but one is needed"),
    ],
)
def test_what_cannot_be_tuned(
    build: Callable[[], Any], message: str, records: Path
) -> None:
    with pytest.raises(tw.TilewrightError, match=message):
        build().tune(trials=1, records=records)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"trials": 0}, "trials=0"),
        ({"seconds": -1.0}, r"seconds=-1\.0"),
        ({"trials": 1, "records": None}, "tuning records are off"),
    ],
)
def test_budgets(given: dict[str, Any], message: str, records: Path) -> None:
    with pytest.raises(InputError, match=message):
        te_product().tune(**{"records": records, "how": FEW, **given})
