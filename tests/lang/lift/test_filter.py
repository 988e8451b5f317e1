"""Filter: elements at indices that are data, as molecular dynamics has its neighbor lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright import lift
from tilewright.base.errors import ExecutionError, InputError
from tilewright.lang.lift import (
    Filter,
    Join,
    Map,
    MapPar,
    MapSeq,
    Reduce,
    ReduceSeq,
    Tup,
    Zip,
    add,
    f32,
    fun,
    i32,
    i64,
    lengths,
    let,
)

n, k = lengths("n k")
N, K = 40, 7
RNG = np.random.default_rng(0)
POSITIONS = [RNG.standard_normal(N, np.float32) for _ in range(3)]


def _force(p: Any, q: Any) -> Any:
    """Of Lennard-Jones, along the first axis."""
    x, y, z = (p[c] - q[c] for c in range(3))
    inverse = 1.0 / (x * x + y * y + z * z + 0.5)
    return let(inverse, lambda r: r * r * r * (r * r * r - 0.5) * x)


@fun
def forces(P: Tup(f32, f32, f32)[n], ids: i32[n, k]):  # type: ignore[valid-type]
    def each(z: Any) -> Any:
        near = Filter(P, z[1])
        return near | Map(lambda q: _force(z[0], q)) | Reduce(add, 0.0)

    return Zip(P, ids) | Map(each) | Join


@fun
def parallel_forces(P: Tup(f32, f32, f32)[n], ids: i32[n, k]):  # type: ignore[valid-type]
    def each(z: Any) -> Any:
        near = Filter(P, z[1])
        return near | MapSeq(lambda q: _force(z[0], q)) | ReduceSeq(add, 0.0)

    return Zip(P, ids) | MapPar(each) | Join


def _expected(ids: np.ndarray) -> np.ndarray:
    p = np.stack(POSITIONS, 1).astype(np.float64)
    d = p[:, None] - p[ids]
    r = 1 / ((d**2).sum(-1) + 0.5)
    return (r**3 * (r**3 - 0.5) * d[..., 0]).sum(1)


@pytest.mark.covering(1)  # both programs, both targets
@pytest.mark.parametrize("program", [forces, parallel_forces])
@pytest.mark.parametrize("target", ["cpu", "interp"])
def test_forces_by_neighbor_lists(program: Any, target: str) -> None:
    ids = RNG.integers(0, N, (N, K), np.int32)
    out = np.empty(N, np.float32)
    lift.build(program, target)(*POSITIONS, ids, out)
    np.testing.assert_allclose(out, _expected(ids), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        lift.interpret(program, *POSITIONS, ids)[0], out, rtol=1e-4
    )
    assert lift.show(lift.parse(lift.show(program))) == lift.show(program)


@pytest.mark.parametrize("program", [forces, parallel_forces])
@pytest.mark.parametrize("wrong", [-1, N, 2**31 - 1])
def test_an_index_outside_is_refused(program: Any, wrong: int) -> None:
    ids = np.zeros((N, K), np.int32)
    ids[3, 2] = wrong
    with pytest.raises(ExecutionError, match="an index in the data is out of range"):
        lift.build(program)(*POSITIONS, ids, np.empty(N, np.float32))
    with pytest.raises(
        InputError, match=f"the index {wrong} is not inside an array of 40"
    ):
        lift.interpret(program, *POSITIONS, ids)


def test_types() -> None:
    with pytest.raises(InputError, match=r"argument 2 is f32\[k\].*integers"):
        lift.infer(fun(lambda x, i: Filter(x, i), f32[n], f32[k]))
    with pytest.raises(InputError, match="Filter"):
        lift.infer(fun(lambda x, i: Filter(x, i), f32[n], i64))
    taken = lift.infer(fun(lambda x, i: Filter(x, i), f32[n, 4], i64[k]))
    assert taken.result == f32[k, 4]


def test_maps_move_through_it() -> None:
    """`filter-map` takes the arithmetic to the elements that are taken, and back."""
    program = fun(lambda x, i: Filter(x | Map(lambda e: e * 2.0), i), f32[n], i64[k])
    derived = lift.derive(program, lift.RULES).apply("filter-map")
    assert "Filter(x, i) | Map" in lift.show(derived.program)
    x, i = np.arange(5, dtype=np.float32), np.array([4, 0, 4])
    found = lift.interpret(derived.program, x, i)[0]
    np.testing.assert_array_equal(found, [8, 0, 8])
