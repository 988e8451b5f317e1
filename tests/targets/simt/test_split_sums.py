"""Products of few results and deep sums: in parts on GPUs, whose sum has one order."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

import tilewright as tw
from tilewright.driver.compile import text
from tilewright.runtime import devices
from tilewright.targets.cuda.machine import MACHINES
from tilewright.testing.ptx import device


def model(m: int, n: int, k: int) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"""
<ir_version: 8, opset_import: ["": 17]>
deep (float[{m}, {k}] a, float[{k}, {n}] b, float[{n}] c) => (float[{m}, {n}] y)
{{ p = MatMul(a, b) s = Add(p, c) y = Relu(s) }}
""")


def parts(m: int, n: int, k: int, **options: object) -> bool:
    shown = text(model(m, n, k), "computation", target="cuda", **options)
    assert ("in parts.sum" in shown) == ("_parts(" in shown)
    return "_parts(" in shown


@pytest.mark.representatives("sm_70")
@pytest.mark.parametrize("arch", MACHINES)
def test_a_deep_sum_of_few_results_is_in_parts(arch):
    assert parts(64, 64, 4096, mcpu=arch)


def test_others_and_exact_ones_are_whole():
    assert not parts(64, 64, 256)
    assert not parts(4096, 4096, 512)
    assert not parts(64, 64, 4096, math="exact")


@pytest.mark.parametrize(("units", "expected"), [(1, False), (108, True)])
def test_it_is_where_there_are_fewer_blocks_than_run_at_once(tmp_path, units, expected):
    file = tmp_path / "machine.toml"
    file.write_text(f'like = "generic"\nunits = {units}\n')
    shown = text(model(512, 512, 2048), "computation", target="opencl", machine=file)
    assert ("_parts(" in shown) is expected


def test_it_is_right_and_the_same_each_time(monkeypatch):
    monkeypatch.setattr(devices, "_makers", {"cuda": device.make})
    devices.find.cache_clear()
    exe = tw.compile(model(16, 16, 2048), target="cuda", cache=False)
    assert len(exe.model.programs) == 2
    rng = np.random.default_rng(0)
    shapes = ((16, 2048), (2048, 16), (16,))
    a, b, c = (rng.standard_normal(s).astype(np.float32) for s in shapes)
    found = exe(a, b, c)
    wanted = np.maximum(a.astype(np.float64) @ b + c, 0)
    np.testing.assert_allclose(found, wanted, atol=2e-4)
    assert np.array_equal(found, exe(a, b, c))
    devices.find.cache_clear()
