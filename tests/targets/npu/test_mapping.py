"""Programs on machines: every result within the derived bound, whatever was chosen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.targets.npu.programs import chain, example, layer
from tilewright import lift
from tilewright.base.errors import InputError
from tilewright.lang.lift import Map, Tuple, Zip, add, f32, fun, mul, sin
from tilewright.lift.derive import derive, replay
from tilewright.lift.interp import interpret
from tilewright.lift.nodes import Lambda
from tilewright.targets import npu
from tilewright.targets.npu.evaluate import evaluate
from tilewright.targets.npu.expansion import OperatorForm
from tilewright.targets.npu.levels import to_operators

NETWORKS = ("dense", "conv_im2col", "conv_stencil", "lstm", "gru", "attention")
QUICK = [("dense", "wide"), ("conv_im2col", "bytes"), ("conv_stencil", "full")]


@pytest.mark.parametrize(("network", "machine"), QUICK, ids=map("-".join, QUICK))
def test_network(network: str, machine: str) -> None:
    """`row` compares with NumPy and with the bound."""
    assert example().row(network, npu.MACHINES[machine]).startswith(network)


@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS)
def test_portability(network: str, golden) -> None:  # type: ignore[no-untyped-def]
    """Cycles, utilization, energy and operators of one program on five machines."""
    rows = [example().row(network, machine) for machine in npu.MACHINES.values()]
    shown = [
        " ".join(w for i, w in enumerate(row.split()) if i not in (5, 6))
        for row in rows
    ]
    golden(f"npu_portability_{network}", "\n".join(shown))


# Cycles that an element-by-element clock and an evaluation of each candidate found.
LARGE = [
    ("lstm", (160,), "full", 27625),
    ("dense", (160, 160), "full", 3582),
    ("attention", (12, 32), "full", 1360),
    ("dense", (160, 160), "bytes", 1138),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "sizes", "machine", "cycles"),
    LARGE,
    ids=[f"{network}-{machine}" for network, _, machine, _ in LARGE],
)
def test_cycles_of_large_shapes(
    network: str, sizes: tuple[int, ...], machine: str, cycles: int
) -> None:
    program = getattr(example(), network)(*sizes)
    assert npu.map_onto(program, npu.MACHINES[machine]).timing.cycles == cycles


def check(
    program: Lambda, machine: npu.NpuMachine, seed: int = 0
) -> npu.MappedNpuProgram:
    """The simulated result is near Lift's, within the bound."""
    mapped = npu.map_onto(program, machine)
    rng = np.random.default_rng(seed)
    shapes = [v.shape for v in evaluate(mapped.derivation.program).inputs]
    inputs = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    (got,) = npu.run(mapped.program, machine, inputs)
    ((exact, bound),) = npu.bounds(mapped.program, machine, inputs)
    (expected,) = interpret(program, *inputs)
    np.testing.assert_allclose(expected, exact, rtol=1e-4, atol=1e-4)
    assert np.isfinite(bound).all()
    assert (np.abs(got - exact) <= bound).all()
    return mapped


@settings(max_examples=4, deadline=None)
@given(
    n=st.integers(1, 200),
    machine=st.sampled_from(sorted(npu.MACHINES)),
    seed=st.integers(0, 99),
)
def test_vectors_of_any_length(n: int, machine: str, seed: int) -> None:
    check(chain(n), npu.MACHINES[machine], seed)


@settings(max_examples=4, deadline=None)
@given(
    m=st.integers(1, 70),
    n=st.integers(1, 70),
    machine=st.sampled_from(["full", "wide", "bytes"]),
)
def test_layers_of_any_size(m: int, n: int, machine: str) -> None:
    check(layer(m, n), npu.MACHINES[machine])


def test_products_of_matrices() -> None:
    """Where there is no product of a matrix and a vector."""
    full = npu.MACHINES["full"]
    found = tuple(op for op in full.operators if op.name != "MVMul")
    assert "2 MMMul64x64x64" in example().row(
        "conv_im2col", replace(full, operators=found)
    )


def test_tiles_need_not_be_square() -> None:
    """16 by 72 times 72 by 16 in tiles of 16 by 40 by 16."""
    full = npu.MACHINES["full"]
    other = tuple(op for op in full.operators if not op.name.startswith("M"))
    tile = npu.MachineOperator("MMMul", (16, 40, 16), 1, 20, 16, 5000.0)
    row = example().row("conv_im2col", replace(full, operators=(*other, tile)))
    assert "2 MMMul16x40x16" in row


def test_160_is_128_and_32() -> None:
    mapped = check(chain(160), npu.MACHINES["full"])
    titles = {task.title for task in evaluate(mapped.derivation.program).tasks}
    assert {"VVMul128", "VVMul32", "VVAdd128", "VVAdd32"} <= titles


def test_padding_pays_where_pieces_would_be_many() -> None:
    """100 elements: one operator of 128, not three of 32 and one of 4."""
    found = npu.operators(
        ("VVAdd", "VVMul", "VVRelu"), (32, 128), lanes=128, latency=4, issue=99
    )
    machine = replace(npu.MACHINES["full"], operators=found)
    assert check(chain(100), machine).summary == "1 VVMul128, 1 VVAdd128, 1 VVRelu128"


def test_intermediates_stay_on_the_chip_and_results_leave_it() -> None:
    mapped = npu.map_onto(chain(64), npu.MACHINES["full"])
    spaces = [t.result.space for t in evaluate(mapped.derivation.program).tasks]
    assert spaces == ["chip", "chip", "output"]
    assert [i.op for i in mapped.program.instructions][-6:] == [
        "v_rd", "vv_mul", "vv_add", "v_relu", "v_wr", "end_chain",
    ]  # fmt: skip


@pytest.mark.slow
def test_short_of_registers_the_order_that_keeps_few_results_is_tried() -> None:
    """1797 cycles by level, where copies of operands are given up and made again."""
    full = npu.MACHINES["full"]
    narrow = replace(full, vectors=replace(full.vectors, capacity=2048))
    assert npu.map_onto(example().gru(40), narrow).timing.cycles == 1790


def test_a_derivation_is_replayed() -> None:
    """All of a mapping is rule applications; each is checked again."""
    machine = npu.MACHINES["full"]
    mapped = npu.map_onto(layer(40, 24), machine)
    rules = npu.rules(machine.elements("vrf"))
    again = replay(mapped.derivation.to_json(), rules)
    assert npu.generate(again.program, machine) == mapped.program


def test_zeros_of_either_sign_are_different_constants() -> None:
    """Products with 0.0 and with -0.0, which compare equal; also in the candidates."""
    full = npu.MACHINES["full"]
    by = lambda x, zero: x | Map(lambda e: mul(e, zero))  # noqa: E731
    program = fun(lambda x: Tuple(by(x, 0.0), by(x, -0.0)), f32[32])
    outputs = npu.run(npu.map_onto(program, full).program, full, [np.ones(32, "f4")])
    assert [np.signbit(y).tolist() for y in outputs] == [[False] * 32, [True] * 32]
    (form,) = to_operators(derive(program, npu.rules(0)))
    made = OperatorForm(form.program).tasks({})
    zeros = [made.values[task.reads[-1]].constant for task in made.tasks]
    assert list(map(repr, zeros)) == ["0.0", "-0.0"]


def tight(vectors: int) -> npu.NpuMachine:
    """Operators of 32, and so many vectors of them in registers."""
    return npu.NpuMachine(
        "tight",
        npu.operators(("VVAdd", "VVMul", "VVRelu"), (32,), lanes=32, latency=2),
        npu.Memory(1 << 20, 8, 10, 1),
        npu.Memory(vectors * 32 * 4, 32, 1, 1),
        npu.Memory(0, 1, 1, 1),
    )


def balanced(n: int) -> Lambda:
    """(a + b) (c + d) + (e + f) (g + h): up to three results wait for one another."""
    plus = lambda x, y: Zip(x, y) | Map(add)  # noqa: E731
    times = lambda x, y: Zip(x, y) | Map(mul)  # noqa: E731
    both = lambda a, b, c, d: times(plus(a, b), plus(c, d))  # noqa: E731
    body = lambda a, b, c, d, e, f, g, h: plus(both(a, b, c, d), both(e, f, g, h))  # noqa: E731
    return fun(body, *(f32[n],) * 8)


def test_what_does_not_fit_is_spilled() -> None:
    roomy, narrow = (check(balanced(64), tight(n)) for n in (8, 2))
    spaces = [
        {t.result.space for t in evaluate(m.derivation.program).tasks}
        for m in (roomy, narrow)
    ]
    assert "dram" not in spaces[0] and "dram" in spaces[1]
    assert narrow.timing.dram_bytes > roomy.timing.dram_bytes
    with pytest.raises(
        npu.NPUError, match="32 elements are needed in vrf, which has 0"
    ):
        npu.map_onto(balanced(64), tight(0))


def test_the_registry_finds_it() -> None:
    built = lift.build(layer(40, 24), target="npu")
    assert isinstance(built, lift.MappedProgram)
    W, b, x = (
        np.random.default_rng(0).standard_normal(s).astype("f4")
        for s in ((40, 24), 40, 24)
    )
    y = np.empty(40, np.float32)
    timing = built(W, b, x, y)
    assert isinstance(timing, npu.NpuTiming) and timing.cycles > 0
    np.testing.assert_allclose(y, np.maximum(W @ x + b, 0), rtol=1e-4, atol=1e-5)
    assert npu.parse(built.source()).outputs[0].shape == (40,)
    with pytest.raises(InputError, match="3 arrays given, 4 expected: W, b, x, out"):
        built(W, b, x)
    with pytest.raises(InputError, match="no 'llvm' text"):
        built.source("llvm")


def test_pinned_matrices_are_there_already() -> None:
    """Without bringing weights: nothing but the vectors crosses the border."""
    machine = npu.MACHINES["wide"]
    program = npu.map_onto(layer(128, 128), machine).program
    once, again = npu.time(program, machine), npu.time(program, machine, pinned=True)
    assert again.dram_bytes == 2 * 3 * 128 == once.dram_bytes - 2 * 128 * 128
    assert again.cycles < once.cycles and again.utilization > once.utilization
    assert once.chains - again.chains == 1


def test_operators_on_padded_vectors_share_a_chain() -> None:
    """What is beyond the end is not taken, so it need not be zero again for each of them."""
    program = npu.map_onto(chain(100), npu.MACHINES["wide"]).program
    ops = [i.op for i in program.instructions]
    assert ops[-7:] == [
        "v_rd",
        "v_rd",
        "vv_mul",
        "vv_add",
        "v_relu",
        "v_wr",
        "end_chain",
    ]


def test_what_has_no_operator_is_an_error() -> None:
    with pytest.raises(npu.NPUError, match="no rule brings sin to an operator"):
        npu.map_onto(fun(lambda x: x | Map(sin), f32[32]), npu.MACHINES["full"])
    with pytest.raises(npu.NPUError, match="tight has no operators for MVMul"):
        npu.map_onto(layer(32, 32), tight(8))
    with pytest.raises(npu.NPUError, match=r"VVMul96.*has no such operator"):
        npu.generate(_recognized(96), npu.MACHINES["full"])
    with pytest.raises(InputError, match=r"MVMul.*is not an operator"):
        npu.NpuMachine(
            "m",
            (npu.MachineOperator("MVMul", (64,), 1, 1, 1, 1),),
            *[npu.Memory(1, 1, 1, 1)] * 3,
        )


def _recognized(n: int) -> Lambda:
    (form,) = to_operators(derive(chain(n), npu.rules(0)))
    return form.program


def test_independent_parts_overlap() -> None:
    """Rows of an attention head side by side: far less than one after the other."""
    machine = npu.MACHINES["wide"]
    two, eight = (
        npu.map_onto(example().attention(n, 8), machine).timing.cycles for n in (2, 8)
    )
    assert eight < 2 * two


@pytest.mark.parametrize("sizes", [(64, 64), (40, 50)])
def test_a_vector_is_added_to_all_rows(sizes: tuple[int, int]) -> None:
    """By one operator, where the machine adds no vectors to one another."""
    full = npu.MACHINES["full"]
    machine = replace(
        full, operators=tuple(op for op in full.operators if op.name != "VVAdd")
    )
    plus = lambda row, b: Zip(row, b) | Map(add)  # noqa: E731
    m, n = sizes
    program = fun(lambda x, b: x | Map(lambda row: plus(row, b)), f32[m, n], f32[n])
    assert check(program, machine).summary == "1 MVAdd64x64"
