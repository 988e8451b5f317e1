"""Products of float32 on tensor cores, which round the factors to tf32: only where asked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx.parser
import pytest

import tilewright as tw
from tests.targets.cuda.running import SM80, load_counted
from tests.targets.cuda.test_tensor_tiles import CORES, SMALL, gpu, launches, scheduled
from tests.targets.simt.products import (
    Case,
    arrays,
    batch,
    convolution,
    expected,
    followed,
    product,
)
from tilewright.base.errors import InputError, UnsupportedError
from tilewright.driver.compile import text
from tilewright.runtime.device import HOST
from tilewright.schedule.space.patterns import classify
from tilewright.targets import registry
from tilewright.targets.cuda import report
from tilewright.targets.cuda.cost import operand_requests
from tilewright.targets.cuda.emit import ptx
from tilewright.targets.cuda.intrinsics import PRODUCTS
from tilewright.targets.cuda.machine import machine
from tilewright.targets.cuda.target import Cuda
from tilewright.targets.cuda.tensor_choice import GROUPS
from tilewright.targets.cuda.tensor_tiles import NAME, TensorCores
from tilewright.targets.cuda.tensor_tiling import RowLayout, TensorTile, tensor_tiling
from tilewright.targets.simt.products import product_of
from tilewright.testing.ptx.traffic import AccessKind
from tilewright.testing.random_kernels import plain

__all__ = ["gpu"]  # a fixture
TF32 = replace(CORES, tf32=True)
(OF,) = (i for i in PRODUCTS if i.name == "cuda.mma.tf32")
CASES = {
    "product": (product(33, 29, 50), (32, 32, 16, 2, 1), 1),
    "batch": (batch(2, 17, 33, 18), SMALL, 1),
    "followed": (followed(18, 35, 40), (32, 64, 16, 1, 4), 2),
    "channels last": (
        convolution(12, 9, 9, 3, 1, last=True),
        (64, 32, 16, 4, 1),
        2,
    ),
    "channels first": (convolution(12, 6, 9, 3, 2), (16, 32, 16, 1, 1), 1),
}


def refusal(case: Case, cores: TensorCores = CORES) -> str:
    p = product_of(classify(case))
    assert p is not None
    return cores.refusal(p)


@pytest.mark.parametrize("name", CASES)
def test_a_product_is_right_as_ptx(name):
    """Of small integers, which tf32 has."""
    case, tile, stages = CASES[name]
    p = launches(scheduled(case, TF32, tensor_tile=tile, stages=stages))
    given = arrays(p)
    traffic, (made,) = load_counted(p, SM80, given)
    assert traffic.products
    assert np.array_equal(made, expected(case, given))


def test_only_the_factors_are_rounded():
    case = product(16, 32, 100)
    p = launches(scheduled(case, TF32, tensor_tile=SMALL))
    rng = np.random.default_rng(0)
    given = {b: rng.standard_normal(b.shape).astype("f") for b in p.params[:2]}
    _, (made,) = load_counted(p, SM80, given)
    left, right = (given[b].astype("d") for b in p.params[:2])
    error, sums = np.abs(made - left @ right), np.abs(left) @ np.abs(right)
    assert (error <= 2 * OF.tolerance * sums).all()
    assert error.max() > 2.0**-16 * sums.max()  # float32 alone would be nearer


def test_it_is_off_unless_asked_for():
    case = product(1024, 1024, 1024)
    assert "no instruction for float32" in refusal(case)
    assert not refusal(case, TF32)
    names = [
        Cuda(SM80, tf32=on).sketches(plain(case), case, ())[0].name
        for on in (False, True)
    ]
    assert NAME not in names[0]
    assert names[1] == NAME


@pytest.mark.parametrize(
    ("cores", "why"),
    [
        (replace(TF32, machine=machine("sm_75")), "it needs sm_80"),
        (replace(TF32, exact=True), "rounds the factors to 10 bits"),
        (
            replace(TF32, machine=machine("sm_90a"), kind=GROUPS),
            "no instruction for float32",
        ),
    ],
)
def test_where_it_is_refused(cores, why):
    assert why in refusal(product(64, 64, 64), cores)


@pytest.mark.parametrize("tile", [(64, 64, 32, 2, 2), (32, 32, 16, 2, 1)])
def test_requests_and_turns_are_those_of_the_closed_forms(tile):
    case = product(64, 64, 64)
    point = scheduled(case, TF32, tensor_tile=tile)
    found, _ = load_counted(launches(point), SM80)
    p = product_of(classify(case))
    assert p is not None
    t = tensor_tiling(p, TensorTile(*tile))
    times = t.plan.blocks * t.plan.steps
    fetched = [
        operand_requests(t, x, RowLayout(*point.values[f"{x.buffer.name}.rows"]), SM80)[
            0
        ]
        for x in (p.left, p.right)
    ]
    kind = AccessKind("global", False)
    assert found.requests[kind] == times * sum(r.requests for r in fetched)
    assert found.products == times * t.products


@pytest.mark.skipif(report.ptxas() is None, reason="there is no ptxas")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_ptxas_spills_nothing(arch):
    of = machine(arch)
    cores = replace(TF32, machine=of)
    p = launches(scheduled(product(1024, 1024, 1024), cores), of)
    (used,) = report.assemble(ptx(p, of), of)[1].values()
    assert used.stack == used.spill_stores == used.spill_loads == 0
    assert used.registers <= 128


# -- the option


MODEL = onnx.parser.parse_model("""
<ir_version: 8, opset_import: ["": 17]>
product (float[256, 256] a, float[256, 256] b) => (float[256, 256] y) { y = MatMul(a, b) }
""")


def test_a_model_multiplies_on_tensor_cores_where_asked():
    asked = {"target": "cuda", "cache": False}
    assert "mma.sync" not in text(MODEL, "asm", **asked)
    found = text(MODEL, "asm", precision="tf32", **asked)
    assert "m16n8k8.row.col.f32.tf32.tf32.f32" in found


@pytest.mark.parametrize(
    ("options", "error", "why"),
    [
        ({"target": "cpu"}, UnsupportedError, 'compile for target="cuda"'),
        ({"target": "opencl"}, UnsupportedError, "has no such mode"),
        ({"target": "cuda", "math": "exact"}, InputError, "forbids rounding"),
        ({"target": "cuda", "precision": "bfloat16"}, UnsupportedError, '"cpu"'),
    ],
)
def test_where_the_option_is_refused(options, error, why):
    with pytest.raises(error, match=why):
        tw.compile(MODEL, **{"precision": "tf32", **options})


def test_other_code_has_another_key():
    asked = registry.target("cuda", precision="tf32")
    assert asked.key != registry.target("cuda").key
    assert asked.device != HOST


def test_a_model_runs(gpu, monkeypatch):
    monkeypatch.setattr(TensorCores, "pays", lambda self, p: True)
    small = onnx.parser.parse_model(onnx.printer.to_text(MODEL).replace("256", "24"))
    exe = tw.compile(small, target="cuda", precision="tf32", cache=False)
    a, b = (np.random.default_rng(n).integers(-9, 9, (24, 24)) for n in range(2))
    found = exe({"a": a.astype("f"), "b": b.astype("f")})
    assert np.array_equal(found, a @ b)
    assert any(b"tf32" in p for p in exe.model.programs)
