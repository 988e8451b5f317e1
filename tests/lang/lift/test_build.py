"""Lift's face: programs written in Python, lowered, built and called."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
from tilewright.base.errors import InputError, UnsupportedError
from tilewright.lang import lift
from tilewright.lang.lift import (
    Join,
    Map,
    MapPar,
    MapSeq,
    MapVec,
    Reduce,
    ReduceSeq,
    Split,
    Transpose,
    Zip,
    add,
    f32,
    fun,
    lengths,
    let,
    mul,
    relu,
)

m, n, k = lengths("m n k")
RNG = np.random.default_rng(0)


@fun
def layer(W: f32[m, n], b: f32[m], x: f32[n]):
    dots = W | Map(lambda row: Zip(row, x) | Map(mul) | Reduce(add, 0.0)) | Join
    return Zip(dots, b) | Map(add) | Map(relu)


@fun
def product(A: f32[m, k], B: f32[k, n]):
    columns = B | Transpose
    return A | MapPar(
        lambda row: (
            columns
            | MapSeq(lambda c: Zip(row, c) | Map(mul) | ReduceSeq(add, 0.0))
            | Join
        )
    )


def arrays(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    return [RNG.standard_normal(s, dtype=np.float32) for s in shapes]


@pytest.mark.parametrize("target", ["cpu", "interp"])
def test_a_program_that_says_what_is_scheduled_by_the_target(target: str) -> None:
    W, b, x = arrays((24, 16), (24,), (16,))
    y = np.zeros(24, np.float32)
    f = lift.build(layer, target, sizes={"m": 24, "n": 16})
    f(W, b, x, y)
    np.testing.assert_allclose(y, np.maximum(W @ x + b, 0), rtol=1e-5, atol=1e-5)


def test_a_program_that_says_how_is_taken_at_its_word() -> None:
    assert lift.is_low_level(product) and not lift.is_low_level(layer)
    kernel = lift.lower(product, {"m": 8, "k": 4, "n": 6})
    assert "for i in 8 parallel:" in repr(kernel)
    A, B = arrays((8, 4), (4, 6))
    C = np.zeros((8, 6), np.float32)
    lift.build(kernel)(A, B, C)
    np.testing.assert_allclose(C, A @ B, rtol=1e-5, atol=1e-5)


def test_sizes_are_found_from_the_arrays() -> None:
    f = lift.build(product)
    for rows, inner, columns in ((8, 4, 6), (5, 3, 2), (8, 4, 6)):
        A, B = arrays((rows, inner), (inner, columns))
        C = np.zeros((rows, columns), np.float32)
        f(A, B, C)
        np.testing.assert_allclose(C, A @ B, rtol=1e-5, atol=1e-5)
    with pytest.raises(InputError, match=r"argument 2: expected the shape \(k, n\)"):
        f(*arrays((8, 4), (5, 6), (8, 6)))


def test_a_schedule_goes_on_from_a_program() -> None:
    s = lift.schedule(layer, {"m": 24, "n": 16})
    assert "for lift.0.i in 24:" in repr(s.kernel)
    s.split("lift.0.i", 4)
    W, b, x = arrays((24, 16), (24,), (16,))
    y = np.zeros(24, np.float32)
    lift.build(s)(W, b, x, y)
    np.testing.assert_allclose(y, np.maximum(W @ x + b, 0), rtol=1e-5, atol=1e-5)


def test_parallel_vector_loops_run() -> None:
    f = fun(lambda x: x | Split(8) | MapPar(MapVec(relu)) | Join, f32["n"])
    (x,) = arrays((64,))
    y = np.zeros(64, np.float32)
    lift.build(f)(x, y)
    np.testing.assert_array_equal(y, np.maximum(x, 0))


NATIVE = {
    "lanes around a fold": "A | Transpose | MapVec(ReduceSeq(add, 0.0)) | Join",
    "nested cores": "A | MapPar(MapPar(relu))",
    "a rotating window": "A | MapPar(MapSeqSlide(Reduce(add, 0.0), 3, 1) >> Join)",
    "prefixes": "A | MapPar(ScanSeq(add, 0.0))",
    "unrolled": "A | MapPar(ReduceSeqUnroll(add, 0.0)) | Join",
    "any fold": "A | MapPar(ReduceSeq(lambda a, x: a * 0.5 + x, 1.0)) | Join",
    "vectors": "A | MapPar(asVector(4) >> MapSeq(Vectorize(4, exp)) >> asScalar)",
}


@pytest.mark.parametrize("name", NATIVE)
def test_low_level_patterns_run_natively(name: str) -> None:
    p = lift.parse(f"fun(lambda A: {NATIVE[name]}, f32[8, 16])")
    (A,) = arrays((8, 16))
    (want,) = lift.interpret(p, A)
    got = np.zeros_like(want)
    lift.build(p)(A, got)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_a_loop_on_a_gpus_axis_is_refused_by_a_processor() -> None:
    p = lift.parse("fun(lambda A: A | MapWrg(MapLcl(relu)), f32[8, 16])")
    with pytest.raises(UnsupportedError, match=r"bound to blockIdx.x"):
        lift.build(p)


def test_types_can_be_given_three_ways() -> None:
    @fun
    def one(x: f32[m]):
        return x | Map(relu)

    @fun(f32[m])
    def two(x):
        return x | Map(relu)

    three = fun(lambda x: x | Map(relu), f32["m"])
    assert lift.show(one) == lift.show(two) == lift.show(three)


def test_text_both_ways() -> None:
    assert lift.show(lift.parse(lift.show(layer))) == lift.show(layer)
    (c,) = lift.normalize(
        lift.parse("fun(lambda x: x | Map(relu), f32[8])")
    ).computations
    assert lift.show(c) == "fun(lambda x: x | Map(lambda i: max(i, 0.0)), f32[8])"
    assert repr(lift.computation(lift.show(c))) == repr(c)
    with pytest.raises(UnsupportedError, match="2 Computations"):
        lift.computation(
            fun(lambda x: let(x | Map(relu), lambda e: Zip(e, e) | Map(add)), f32[8])
        )


def test_wrong_sizes_are_named() -> None:
    with pytest.raises(InputError, match=r"no length is called 'q'.*lengths: "):
        lift.build(layer, sizes={"m": 2, "q": 3})
    f = fun(lambda x: x | Split(8) | Map(Map(relu)) | Join, f32["n"])
    with pytest.raises(InputError, match=r"8 \| n \(Split\(8\)\) does not hold"):
        lift.build(f, sizes={"n": 12})


def test_it_is_public() -> None:
    assert tilewright.lift is lift


def test_sizes_from_arrays_tell_what_the_machine_did() -> None:
    """As the function of given sizes does."""
    f = fun(lambda x: x | Map(relu), f32["n"])
    x, y = np.linspace(-1, 1, 64, dtype=np.float32), np.empty(64, np.float32)
    known = lift.build(f, "npu", sizes={"n": 64})(x, y)
    found = lift.build(f, "npu")(x, y)
    assert known is not None and found == known
    assert lift.build(f, "interp")(x, y) is None


def test_only_programs_are_built_and_shown() -> None:
    for verb in (lift.build, lift.show, lift.lower, lambda p: lift.derive(p, ())):
        with pytest.raises(InputError, match="3 is not a program"):
            verb(3)  # type: ignore[operator]
