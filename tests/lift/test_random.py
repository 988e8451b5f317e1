"""Random programs agree: the interpreter of lists, the Computations, the loops, native code."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tilewright.compute.check import check
from tilewright.compute.interp import evaluate
from tilewright.lang import lift
from tilewright.lift import codegen
from tilewright.lift.interp import interpret
from tilewright.lift.normalize import normalize
from tilewright.loops import interp
from tilewright.loops.nodes import Kernel
from tilewright.loops.verify import verify
from tilewright.testing.lift_programs import lowered, random_program

SEEDS = st.integers(0, 2**32 - 1)


def run(kernel: Kernel, arrays: list[Any]) -> list[Any]:
    outputs = [np.zeros(b.shape, b.dtype.numpy) for b in kernel.outputs]
    interp.run(kernel, dict(zip(kernel.params, [*arrays, *outputs], strict=True)))
    return outputs


def same(got: Any, want: Any) -> None:
    for g, w in zip(got, want, strict=True):
        np.testing.assert_array_equal(g, w)


def agree(seed: int) -> None:
    rng = Random(seed)
    program = random_program(rng, rng.randint(1, 4))
    normal = normalize(program, {})
    values = np.random.default_rng(seed)
    arrays = [
        values.integers(-3, 4, b.shape).astype(b.dtype.numpy) for b in normal.inputs
    ]
    want = interpret(program, *arrays)
    for c in normal.computations:
        check(c)
    written = evaluate(
        normal.computations, dict(zip(normal.inputs, arrays, strict=True))
    )
    same([written[b] for b in normal.outputs], want)
    for p in (program, lowered(program, rng)):
        kernel = codegen.lower(p, {})
        verify(kernel)
        same(run(kernel, arrays), want)


@settings(max_examples=80, deadline=None)
@given(SEEDS)
@example(91453752)  # a border around rows that are joined from parts
@example(16777215)  # a tuple of sums of elements has a name
def test_programs_agree(seed: int) -> None:
    agree(seed)


@pytest.mark.slow
@settings(max_examples=3000, deadline=None)
@given(SEEDS)
def test_many_programs_agree(seed: int) -> None:
    agree(seed)


@settings(max_examples=6, deadline=None)
@given(SEEDS)
def test_native_code_agrees(seed: int) -> None:
    rng = Random(seed)
    program = random_program(rng, 3)
    loops = lowered(program, rng)
    values = np.random.default_rng(seed)
    for kernel in (lift.lower(loops), lift.schedule(program, target="cpu").kernel):
        arrays = [
            values.integers(-3, 4, b.shape).astype(b.dtype.numpy) for b in kernel.inputs
        ]
        outputs = [np.zeros(b.shape, b.dtype.numpy) for b in kernel.outputs]
        lift.build(kernel)(*arrays, *outputs)
        same(outputs, interpret(program, *arrays))
