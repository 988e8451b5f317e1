"""The search finds mappings by itself, within what the machine has; macros are rules together."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import lift
from tilewright.base.dtypes import int64
from tilewright.base.errors import InputError
from tilewright.lang.lift import (
    RULES,
    At,
    Join,
    Map,
    Reduce,
    Split,
    Transpose,
    Zip,
    add,
    f32,
    fun,
    i64,
    mul,
    neg,
    relu,
)
from tilewright.lift import codegen
from tilewright.lift.accelerate import accelerate
from tilewright.lift.cost import Cycles
from tilewright.lift.derive import derive, replay
from tilewright.lift.macros import register_block, tile_map_map
from tilewright.lift.memory import resident
from tilewright.lift.nodes import DeviceOp, Lambda, Part
from tilewright.lift.rule import RuleError
from tilewright.lift.rules.device import Accelerator, rules
from tilewright.lift.search import move, search
from tilewright.lift.sites import root_site, walk
from tilewright.lift.strategies import bottom_up, rule, run, then, top_down

MACHINE = Accelerator(vector=8, rows=8, columns=8, chip=4096)


def layer(out: int, inputs: int, dtype=f32) -> Lambda:  # type: ignore[no-untyped-def]
    def program(W, b, x):  # type: ignore[no-untyped-def]
        def neuron(ws, bn):  # type: ignore[no-untyped-def]
            return Zip(x, ws) | Map(mul) | Reduce(add, bn) | Map(relu)

        return Zip(W, b) | Map(neuron) | Join

    return fun(program, dtype[out, inputs], dtype[out], dtype[inputs])  # type: ignore[no-any-return]


def instructions(program: Part) -> list[DeviceOp]:
    assert isinstance(program, Lambda)
    return [s.node for s in walk(root_site(program)) if isinstance(s.node, DeviceOp)]


def size(program: Part) -> float:
    """Characters: a cost that anyone understands."""
    return float(len(repr(program)))


# -- search


def test_the_cheapest_program_within_reach_is_found() -> None:
    program = fun(
        lambda x: x | Split(2) | Join | Split(4) | Map(Map(neg)) | Join, f32[8]
    )
    d = derive(program, RULES)
    moves = [
        move("split-cancel"),
        move("map-join"),
        move("map-seq"),
        move("split-join", m=2),
    ]
    found = search(d, moves, size, depth=5)
    assert sorted(s.rule for s in found.derivation.steps) == [
        "map-join",
        *["split-cancel"] * 2,
    ]
    assert found.cost == size(found.derivation.program) < size(program)


def test_programs_that_differ_in_names_only_are_one_state() -> None:
    swaps = fun(lambda x, y: Zip(x, y) | Map(lambda p, q: p - q), i64[4], i64[4])
    found = search(derive(swaps, RULES), [move("zip-swap")], size, depth=9)
    assert found.seen == 2


def test_a_search_without_a_beam_is_refused() -> None:
    d = derive(fun(lambda x: x | Map(neg), f32[8]), RULES)
    with pytest.raises(InputError, match="width 0 and depth 12 must be at least 1"):
        search(d, [], size, width=0)
    with pytest.raises(InputError, match="there is no rule 'nothing'"):
        search(d, [move("nothing")], size)


# -- accelerators


@pytest.fixture(scope="module")
def found():  # type: ignore[no-untyped-def]
    return accelerate(layer(24, 16), MACHINE)


def test_a_layer_is_mapped_onto_instructions_only(found) -> None:  # type: ignore[no-untyped-def]
    program = found.derivation.program
    names = {op.name for op in instructions(program)}
    assert names == {"MVMul8", "VVAdd8", "VVRelu8"}
    assert all(map(MACHINE.has, instructions(program)))
    cycles = Cycles(MACHINE.has)
    assert found.cost == cycles(program) < cycles(found.derivation.start) / 100
    assert 0 < resident(program) <= MACHINE.chip


def test_the_mapping_computes_the_layer(found) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(0)
    W, b, x = (rng.standard_normal(s, dtype=np.float32) for s in ((24, 16), 24, 16))
    expected = np.maximum(W @ x + b, 0)
    program = found.derivation.program
    np.testing.assert_allclose(
        lift.interpret(program, W, b, x)[0], expected, rtol=1e-4, atol=1e-5
    )
    y = np.empty(24, np.float32)
    kernel = codegen.lower(program, {}, "layer", codegen.DEVICE)
    lift.build(kernel, target="interp")(W, b, x, y)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    assert "block MVMul8" in repr(kernel)


def test_a_found_derivation_replays(found) -> None:  # type: ignore[no-untyped-def]
    table = {**RULES, **rules(MACHINE)}
    again = replay(found.derivation.to_json(), table)
    assert repr(again.program) == repr(found.derivation.program)


def test_a_small_chip_leaves_results_in_memory(found) -> None:  # type: ignore[no-untyped-def]
    """A partial sum and the next product are there together: 64 bytes."""
    assert resident(found.derivation.program) == 64
    tiled = next(
        n for n, s in enumerate(found.derivation.steps) if s.rule.startswith("to-")
    )
    tiny = Accelerator(vector=8, rows=8, columns=8, chip=48)
    d = derive(found.derivation.programs[tiled], {**RULES, **rules(tiny)})
    moves = [
        move(name)
        for name in ("to-chip-1", "to-chip-2", "to-chip-reduce", "to-output-1")
    ]
    less = search(d, moves, Cycles(tiny.has), width=4, depth=5)
    assert resident(less.derivation.program) == 32
    assert less.cost > found.cost


def test_a_layer_that_no_tile_divides_is_padded() -> None:
    machine = Accelerator(vector=8, rows=8, columns=8, chip=4096, dtype=int64)
    d = derive(layer(13, 16, i64), {**RULES, **rules(machine)})
    for name in TO_OPERATORS:
        d = d.apply(name)
    assert {op.name for op in instructions(d.program)} == {
        "MVMul13x16",
        "VVAdd13",
        "VVRelu13",
    }
    with pytest.raises(RuleError, match="8 does not divide 13"):
        d.apply("tile-VVAdd", p=8)
    d = d.apply("pad-MVMul-rows", p=16).apply("tile-MVMul-rows", p=8)
    d = d.apply("tile-MVMul-columns", q=8)
    for name in ("VVAdd", "VVRelu"):
        d = d.apply(f"pad-{name}", p=16).apply(f"tile-{name}", p=8)
    assert all(map(machine.has, instructions(d.program)))
    rng = np.random.default_rng(0)
    W, b, x = (rng.integers(-5, 5, s) for s in ((13, 16), 13, 16))
    np.testing.assert_array_equal(
        lift.interpret(d.program, W, b, x)[0],  # type: ignore[arg-type]
        np.maximum(W @ x + b, 0),
    )


TO_OPERATORS = (
    "zip-commute", "map-fission", "map-join", "reduce-init", "map-fission-capture", "zip-first",
    "map-join-one", "zip-flatten-left", "zip-drop-first", "recognize-MVMul", "recognize-VVAdd",
    "recognize-VVRelu",
)  # fmt: skip


# -- macros


def test_tiles_of_two_dimensions() -> None:
    program = fun(
        lambda x, y: x | Map(lambda p: y | Map(lambda q: p * q + p)), i64[12], i64[20]
    )
    d = run(top_down(tile_map_map(4, 5)), derive(program, RULES))
    assert [s.rule for s in d.steps] == [
        "split-join",
        "interchange",
        "split-join",
        "interchange",
    ]
    assert "Split(4)" in repr(d.program)
    assert "Split(5)" in repr(d.program)
    x, y = np.arange(12), np.arange(20)
    (found,) = lift.interpret(d.program, x, y)  # type: ignore[arg-type]
    np.testing.assert_array_equal(found, x[:, None] * y + x[:, None])
    with pytest.raises(RuleError, match="applies nowhere"):
        run(top_down(tile_map_map(4, 3)), derive(program, RULES))


def test_a_matrix_product_with_its_block_of_results_in_one_reduction() -> None:
    def dot(a, b):  # type: ignore[no-untyped-def]
        return Zip(a, b) | Map(mul) | Reduce(add, 0.0) | At(0)

    program = fun(
        lambda A, B: A | Map(lambda a: B | Transpose | Map(lambda b: dot(a, b))),
        f32[16, 24],
        f32[24, 32],
    )
    d = run(top_down(tile_map_map(4, 8)), derive(program, RULES))
    d = run(top_down(register_block()), d).apply("map-par").apply("map-seq")
    lanes = bottom_up(rule("map-vec"))
    d = run(then(lanes, lanes), d)
    kernel = lift.lower(d.program)  # type: ignore[arg-type]
    assert "for m in 8 vector:" in repr(kernel)
    assert "add= A[i * 4 + l_2, k_2] * B[k_2, j * 8 + m]" in repr(kernel)
    rng = np.random.default_rng(0)
    A, B = rng.random((16, 24), np.float32), rng.random((24, 32), np.float32)
    C = np.empty((16, 32), np.float32)
    lift.build(kernel)(A, B, C)
    np.testing.assert_allclose(C, A @ B, rtol=1e-5)
