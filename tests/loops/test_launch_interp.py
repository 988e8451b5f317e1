"""The judge of launches: what each program means, and that no race gets past it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.base.dtypes import float32, int32
from tilewright.base.errors import ExecutionError, InputError
from tilewright.compute.reducer import Reducer, arg_reducer
from tilewright.expr.nodes import Var, const
from tilewright.loops.launch import LaunchProgram
from tilewright.loops.launch_interp import DivergenceError, run
from tilewright.loops.parser import parse_program
from tilewright.loops.shared_memory import RaceError

# Which of two values comes first: associative, and the order matters.
_A, _B = Var("a", int32), Var("b", int32)
FIRST, LAST = (
    Reducer(name, (_A,), (_B,), (which,), (const(0, int32),), commutative=False)
    for name, which in (("first", _A), ("last", _B))
)


def program(
    body: str, grid: int = 2, threads: int = 4, shared: str = "", **operators: Any
) -> LaunchProgram:
    """One launch over 8 elements of x and y, with these statements."""
    head = [
        "program k(x: int32[8]) -> y: int32[8]:",
        f"  launch k_0(x, y) grid [{grid}, 1, 1] threads [{threads}, 1, 1]:",
    ]
    head += [f"    shared {shared}"] if shared else []
    return parse_program(head + ["    " + line for line in body.split("\n")], operators)


def result(p: LaunchProgram, seed: int = 0) -> list[int]:
    arrays = [np.arange(1, 9, dtype=np.int32), np.zeros(8, np.int32)]
    run(p, dict(zip(p.params, arrays, strict=True)), seed)
    return arrays[1].tolist()


ME = "blockIdx.x * 4 + threadIdx.x"
REVERSED = f"t[threadIdx.x] = x[{ME}]\nbarrier shared\ny[{ME}] = t[3 - threadIdx.x]"


@pytest.mark.parametrize("seed", range(5))
def test_a_barrier_orders_what_threads_exchange(seed):
    p = program(REVERSED, shared="t: int32[4] in shared")
    assert result(p, seed) == [4, 3, 2, 1, 8, 7, 6, 5]


RACES = {
    "read after write": "t[threadIdx.x] = x[0]\ny[{me}] = t[3 - threadIdx.x]",
    "write after read": "y[{me}] = t[3 - threadIdx.x]\nt[threadIdx.x] = x[0]",
    "write after write": "t[threadIdx.x] = x[0]\nt[3 - threadIdx.x] = x[0]",
    "equal values": "t[0] = x[0]",
    "an update": "t[0] add= x[0]",
    "between iterations": (
        "for k in 2:\n  t[threadIdx.x] = x[0]\n  barrier shared\n  y[{me}] = t[3 - threadIdx.x]"
    ),
    "blocks": "y[threadIdx.x] = x[0]",
    "a block reads of another": (
        "y[{me}] = x[0]\nbarrier global\nif blockIdx.x < 1:\n  t[threadIdx.x] = y[threadIdx.x + 4]"
    ),
    "a barrier for shared memory only": (
        "y[{me}] = x[0]\nbarrier shared\nt[threadIdx.x] = y[blockIdx.x * 4 + 3 - threadIdx.x]"
    ),
    "a condition": "if t[0] < x[0]:\n  y[{me}] = x[0]\nif threadIdx.x < 1:\n  t[0] = x[0]",
    "an index": "y[{me}] = x[i64(t[0]) % 8]\nif threadIdx.x < 1:\n  t[0] = x[0]",
}


@pytest.mark.parametrize("what", RACES)
@pytest.mark.parametrize("seed", range(3))
def test_a_race_is_found_whatever_the_order(what, seed):
    p = program(RACES[what].format(me=ME), shared="t: int32[4] in shared")
    with pytest.raises(RaceError) as found:
        result(p, seed)
    assert found.value.code == "TW-RACE"


def test_a_race_names_the_element_the_threads_and_the_statements():
    p = program(
        RACES["read after write"].format(me=ME), 1, shared="t: int32[4] in shared"
    )
    with pytest.raises(
        RaceError,
        match=r"k_0: t\[\d\]: thread \(\d, 0, 0\) of block \(0, 0, 0\) \w+ it in "
        r"`.*`, and thread \(\d, 0, 0\) of block .* it in `.*`, with no barrier between",
    ):
        result(p)


def test_a_global_barrier_orders_both_memories():
    p = program(
        f"y[{ME}] = x[{ME}]\nt[threadIdx.x] = x[{ME}]\nbarrier global\n"
        f"t[threadIdx.x] = t[threadIdx.x] + y[blockIdx.x * 4 + 3 - threadIdx.x]\n"
        f"barrier global\ny[{ME}] = t[threadIdx.x]",
        shared="t: int32[4] in shared",
    )
    assert result(p) == [5, 5, 5, 5, 13, 13, 13, 13]


DIVERGED = {
    "some have ended": "if threadIdx.x < 2:\n  barrier shared",
    "others are at another one": (
        "if threadIdx.x < 2:\n  barrier shared\nelse:\n  barrier shared"
    ),
    "not as often": "for k in threadIdx.x + 1:\n  barrier shared",
    "a combination": "alloc r: int32[] in register:\n  r[] = 1\n"
    "  if threadIdx.x < 2:\n    combine r[] by add over 2",
}


@pytest.mark.parametrize("what", DIVERGED)
def test_threads_that_do_not_come_to_a_barrier_are_named(what):
    with pytest.raises(
        DivergenceError, match=r"k_0, block \(\d, 0, 0\): thread .* waits"
    ):
        result(program(DIVERGED[what]))


def test_an_index_out_of_range_names_the_thread():
    p = program(f"y[{ME} + 1] = x[0]")
    with pytest.raises(
        ExecutionError, match=r"thread \(3, 0, 0\) of block \(1, 0, 0\).*y.*8"
    ):
        result(p)


def test_what_is_undefined_reads_as_the_kernels_interpreter_has_it():
    p = program(
        f"alloc r: int32[1] in register:\n  y[{ME}] = r[0] + t[0]",
        shared="t: int32[4] in shared",
    )
    assert result(p) == [0x55 + 0x55] * 8


@pytest.mark.parametrize(
    ("operator", "lanes"), [(FIRST, (0, 0, 2, 2)), (LAST, (1, 1, 3, 3))]
)
def test_values_are_combined_in_the_order_of_the_threads(operator, lanes):
    p = program(
        f"alloc r: int32[] in register:\n  r[] = x[{ME}]\n"
        f"  combine r[] by {operator.name} over 2\n  y[{ME}] = r[]",
        **{operator.name: operator},
    )
    assert result(p) == [1 + b * 4 + lane for b in range(2) for lane in lanes]


def test_all_components_are_combined_together():
    lines = [
        "program k(x: float32[4]) -> y: int32[1]:",
        "  launch k_0(x, y) grid [1, 1, 1] threads [4, 1, 1]:",
        "    alloc v: float32[] in register:",
        "      alloc i: int32[] in register:",
        "        v[] = x[threadIdx.x]",
        "        i[] = i32(threadIdx.x)",
        "        combine v[], i[] by argmax over 4",
        "        if threadIdx.x < 1:",
        "          y[0] = i[]",
    ]
    p = parse_program(lines, {"argmax": arg_reducer("argmax", float32, int32)})
    y = np.zeros(1, np.int32)
    run(p, dict(zip(p.params, [np.array([1, 7, 7, 2], np.float32), y], strict=True)))
    assert y[0] == 1


def test_sizes_are_those_of_the_arrays():
    lines = [
        "program k(x: int32[n]) -> y: int32[n]:",
        "  size n",
        "  workspace w: int32[n]",
        "  launch k_0(x, w) grid [n, 1, 1] threads [1, 1, 1]:",
        "    w[n - 1 - blockIdx.x] = x[blockIdx.x]",
        "  launch k_1(w, y) grid [n, 1, 1] threads [1, 1, 1]:",
        "    y[blockIdx.x] = w[blockIdx.x]",
    ]
    p = parse_program(lines)
    arrays = [np.arange(5, dtype=np.int32), np.zeros(5, np.int32)]
    run(p, dict(zip(p.params, arrays, strict=True)))
    assert arrays[1].tolist() == [4, 3, 2, 1, 0]
    with pytest.raises(InputError, match="no array for y"):
        run(p, {p.params[0]: arrays[0]})


def test_a_deep_nest_meets_at_its_barriers():
    """Deeper than one function of Python's may be."""
    heads = [f"{'  ' * n}for k{n} in 1:" for n in range(14)]
    inner = ["  " * 14 + line for line in REVERSED.split("\n")]
    p = program("\n".join(heads + inner), shared="t: int32[4] in shared")
    assert result(p) == [4, 3, 2, 1, 8, 7, 6, 5]
