"""Products of float8 tensors on tensor cores: by warps, by four of them, and from ONNX."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tests.targets.cuda.running import load_counted
from tests.targets.cuda.test_tensor_tiles import launches, scheduled
from tests.targets.simt.products import Case, product
from tilewright.base.dtypes import DType, float8_e4m3fn, float8_e5m2, float32
from tilewright.compute.build import reduce_
from tilewright.driver.compile import text
from tilewright.expr.nodes import Buffer, Cast
from tilewright.runtime import devices
from tilewright.schedule.space.patterns import classify
from tilewright.targets.cuda import report
from tilewright.targets.cuda.emit import ptx
from tilewright.targets.cuda.machine import machine
from tilewright.targets.cuda.target import Cuda
from tilewright.targets.cuda.tensor_choice import GROUPS, WARPS
from tilewright.targets.cuda.tensor_tiles import TensorCores
from tilewright.targets.simt.code import PTX, DeviceProgram
from tilewright.targets.simt.products import product_of
from tilewright.testing.ptx import device
from tilewright.testing.random_kernels import plain

SM89, SM90A = machine("sm_89"), machine("sm_90a")
E4M3, E5M2 = float8_e4m3fn, float8_e5m2


def turned(m: int, n: int, k: int, left: DType = E4M3, right: DType = E4M3) -> Case:
    """A times B transposed."""
    a, b = Buffer("A", (m, k), left), Buffer("B", (n, k), right)
    y = Buffer("Y", (m, n), float32)
    return [
        reduce_(
            "mm",
            y,
            (k,),
            "add",
            lambda i, j, k: Cast(a[i, k], float32) * Cast(b[j, k], float32),
        )
    ]


def check(case: Case, cores: TensorCores, mode: str, **choices: object) -> None:
    """That a product is within what its intrinsic promises: of numbers, subnormal ones too."""
    p = launches(scheduled(case, cores, **choices), cores.machine)
    assert mode in ptx(p, cores.machine)
    rng = np.random.default_rng(2)
    a, b, _ = p.params
    given = {
        x: (rng.standard_normal(x.shape) * 2.0 ** rng.integers(-9, 5, x.shape)).astype(
            x.dtype.numpy
        )
        for x in (a, b)
    }
    traffic, (made,) = load_counted(p, cores.machine, given)
    assert traffic.products or traffic.group_products
    left, right = (given[x].astype(np.float64) for x in (a, b))
    right = right if b.shape[0] == a.shape[1] else right.T
    error = np.abs(made - left @ right)
    # The interpreter rounds a sum once in each instruction, as a float32.
    assert (error <= 2.0**-20 * (np.abs(left) @ np.abs(right))).all()


@pytest.mark.sampled(2)  # one type, and two
@pytest.mark.parametrize(
    ("left", "right", "mode"),
    [(E4M3, E4M3, "e4m3.e4m3"), (E5M2, E5M2, "e5m2.e5m2"), (E4M3, E5M2, "e4m3.e5m2")],
)
def test_a_product_is_right_by_warps(left, right, mode):
    cores = TensorCores(SM89, False, WARPS)
    tile = (32, 32, 32, 2, 1)
    check(turned(19, 33, 70, left, right), cores, f"f32.{mode}.f32", tensor_tile=tile)


def test_a_product_is_right_by_four_warps():
    cores = TensorCores(SM90A, False, GROUPS)
    along = product_of(classify(product(64, 64, 256, E4M3, float32)))
    assert along is not None and "no tile fits" in cores.refusal(along)
    case, tile = turned(60, 128, 200), (64, 128, 128, 1, 1)
    check(case, cores, "k32.f32.e4m3.e4m3", group_tile=tile, stages=1)


def test_who_has_it():
    p = product_of(classify(turned(64, 64, 64)))
    assert p is not None
    assert not TensorCores(SM89, False).refusal(p)
    alone = product_of(classify(turned(64, 64, 1)))
    assert alone is not None
    assert "one value only" in TensorCores(SM89, False).refusal(alone)
    reasons = [
        (
            machine("sm_80"),
            False,
            "sm_80 has no cuda.mma.float8_e4m3fn: it needs sm_89",
        ),
        (SM89, True, "keeps about 14 bits of the sum"),
    ]
    for of, exact, why in reasons:
        assert why in TensorCores(of, exact).refusal(p)


def test_the_model_takes_it_where_it_is_faster():
    case = turned(4096, 4096, 4096)
    names = {
        name: Cuda(machine(name), False).sketches(plain(case), case, ())[0].name
        for name in ("sm_80", "sm_89", "sm_90", "sm_90a")
    }
    assert names == {
        "sm_80": "tiles",
        "sm_89": WARPS.name,
        "sm_90": WARPS.name,
        "sm_90a": GROUPS.name,
    }


@pytest.mark.skipif(report.ptxas() is None, reason="there is no ptxas")
def test_ptxas_holds_the_best_tile_in_registers():
    of, kind = SM90A, GROUPS
    case = turned(4096, 4096, 4096)
    program = launches(scheduled(case, TensorCores(of, False, kind)), of)
    (used,) = report.assemble(ptx(program, of), of)[1].values()
    assert 140 <= used.registers <= 180
    assert used.stack == used.spill_stores == used.spill_loads == 0
    assert not used.is_serialized


def test_float8_of_onnx_is_multiplied_as_it_is(monkeypatch):
    """A cast rounds and saturates as on the CPU; sums of these numbers are exact."""
    m, n, k = 256, 256, 128
    rng = np.random.default_rng(0)
    weight = rng.integers(-4, 5, (k, n)).astype(E4M3.numpy)
    f8, f32 = TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT
    held = helper.make_tensor("w", f8, (k, n), weight.tobytes(), raw=True)
    casts = (("x", "x8", f8), ("x8", "a", f32), ("w", "b", f32))
    nodes = [helper.make_node("Cast", [of], [name], to=to) for of, name, to in casts]
    nodes.append(helper.make_node("MatMul", ["a", "b"], ["y"]))
    x, y = (
        helper.make_tensor_value_info(name, f32, shape)
        for name, shape in (("x", (m, k)), ("y", (m, n)))
    )
    graph = helper.make_graph(nodes, "g", [x], [y], [held])
    opset = [helper.make_opsetid("", 21)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=10)
    monkeypatch.setattr(devices, "_makers", {"cuda": device.make})
    devices.find.cache_clear()
    exe = tw.compile(model, target="cuda", mcpu="sm_89", cache=False)
    programs = [DeviceProgram.from_bytes(p, PTX).text for p in exe.model.programs]
    assert any("f32.e4m3.e4m3.f32" in p for p in programs)
    assert "MixedMatMul" not in text(model, "graph", target="cuda", mcpu="sm_80")
    given = rng.integers(-40, 41, (m, k)).astype(np.float32)
    given[0, 0], given[1, 1] = 1000, -1e30
    found = np.asarray(exe(given))
    devices.find.cache_clear()
    assert np.array_equal(found, np.asarray(tw.compile(model, cache=False)(given)))
    assert found[0, 0] == given.clip(-448, 448).astype(E4M3.numpy)[0] @ weight[:, 0]


PRODUCT = """<ir_version: 10, opset_import: ["": 21]> g
    (float8e4m3fn[4, 8] x, %s[8, 4] w) => (%s[4, 4] y, %s[4, 8] a)
    { a = Cast<to = %d>(x) b = Cast<to = %d>(w) y = MatMul(a, b) }"""


@pytest.mark.parametrize(
    ("right", "wide", "is_rewritten"),
    [("float8e5m2", "float", 1), ("float16", "float", 0), ("float8e5m2", "float16", 0)],
)
def test_only_products_of_two_float8_in_float32_are_rewritten(
    right, wide, is_rewritten
):
    """A cast that something else reads stays, too."""
    to = {"float": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}[wide]
    model = onnx.parser.parse_model(PRODUCT % (right, wide, wide, to, to))
    found = text(model, "graph", target="cuda", mcpu="sm_89")
    assert found.count("MixedMatMul") == is_rewritten
    assert found.count("Cast") == 2 - is_rewritten
