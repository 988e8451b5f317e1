"""`optimize=` of compile: the searched graph is compiled, by every face, and it is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

import tilewright as tw
from tilewright.base import events, modes
from tilewright.base.errors import InputError, UnsupportedError
from tilewright.driver import graph_passes, schedules, text
from tilewright.driver.compilation import target_of
from tilewright.driver.options import Options
from tilewright.driver.schedule_records import without_priced
from tilewright.driver.tasks import tasks
from tilewright.driver.validate import validate_model
from tilewright.frontends.onnx import load
from tilewright.graph.nodes import Graph

RULE = "product-from-the-right"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path


def low_rank(rows: int | str = 64) -> bytes:
    """A product of three matrices, of which two are known."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]>\n'
        f"low_rank (float[{rows}, 256] x) => (float[{rows}, 64] y)\n"
        "{ h = MatMul(x, a) y = MatMul(h, b) }"
    )
    rng = np.random.default_rng(0)
    for name, shape in (("a", (256, 256)), ("b", (256, 64))):
        weight = rng.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    return model.SerializeToString()


def data(rows: int = 64) -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).normal(size=(rows, 256)).astype(np.float32)


@pytest.mark.parametrize("how", ["fast", "search", "saturate"])
def test_the_searched_graph_is_compiled(how: str) -> None:
    plain = tw.compile(low_rank(), threads=1, optimize="off")
    exe = tw.compile(low_rank(), threads=1, math="fast", optimize=how)
    assert len(plain.model.kernels) == 2 and len(exe.model.kernels) == 1
    assert "substitutions" not in plain.model.meta
    (step,) = exe.model.meta["substitutions"]
    assert step["rule"] == RULE and step["after"] < step["before"]
    want = plain(data())
    np.testing.assert_allclose(exe(data()), want, rtol=1e-3, atol=1e-3)


def test_the_cache_tells_the_options_apart_and_keeps_the_derivation() -> None:
    kept = {}
    for how in ("off", "search", "off", "search"):
        with events.record() as log:
            exe = tw.compile(low_rank(), threads=1, math="fast", optimize=how)
        cached = any(e.kind == "model-cached" for e in log)
        assert cached == (how in kept)
        kept[how] = [s["rule"] for s in exe.model.meta.get("substitutions", ())]
    assert kept == {"off": [], "search": [RULE]}


def test_an_artifact_says_its_substitutions(folder: Path) -> None:
    tw.compile(low_rank(), threads=1, math="fast", optimize="search").save(
        folder / "m.tw"
    )
    steps = tw.load(folder / "m.tw").model.meta["substitutions"]
    assert [s["rule"] for s in steps] == [RULE]


def test_each_size_of_a_dynamic_model_is_searched() -> None:
    exe = tw.compile(low_rank("n"), threads=1, math="fast", optimize="search")
    for rows in (48, 64):
        got = exe(data(rows))
        want = tw.compile(low_rank(rows), threads=1)(data(rows))
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)
        made = exe.specialized({"x": data(rows)})
        assert made.model.meta["substitutions"]


def test_every_face_sees_the_searched_graph() -> None:
    how = {"threads": 1, "math": "fast", "optimize": "search"}
    assert text(low_rank(), "graph", **how).count("MatMul(") == 1
    assert len(schedules(low_rank(), **how)) == 1
    assert len(tasks(low_rank(), **how)) == 1
    assert len(validate_model(low_rank(), **how)) == 1
    assert len(tasks(low_rank(), threads=1)) == 2


def test_rules_for_finite_numbers_are_for_fast_alone() -> None:
    for math in ("exact", "default"):
        exe = tw.compile(low_rank(), threads=1, optimize="search", math=math)
        assert len(exe.model.kernels) == 2 and "substitutions" not in exe.model.meta


def test_an_output_in_the_memory_of_an_input_stays_there() -> None:
    graph = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]>\n'
        "cache (float[4, 8] past, float[4, 8] x) => (float[4, 8] present)\n"
        "{ a = Mul(past, x) b = Mul(past, x) present = Add(a, b) }"
    ).SerializeToString()
    exe = tw.compile(graph, math="fast", optimize="search", aliases={"present": "past"})
    past = np.full((4, 8), 3, np.float32)
    exe(past, np.full((4, 8), 2, np.float32))
    np.testing.assert_array_equal(past, 12)


def test_bad_values_are_refused() -> None:
    with pytest.raises(InputError, match="optimize='most'"):
        tw.compile(low_rank(), optimize="most")
    with pytest.raises(InputError, match="this option is for compile"):
        tw.optimize(low_rank(), optimize="search")
    with pytest.raises(InputError, match="symbolic"):
        text(low_rank("n"), "graph", optimize="search")
    with pytest.raises(UnsupportedError, match="only for the host"):
        tw.compile(low_rank(), target="npu", optimize="search")


@pytest.mark.parametrize(("now", "kept"), [(0.5, True), (1.0, False), (2.0, False)])
def test_graph_passes_is_taken_only_where_kernels_are_faster(
    now: float, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """now: what the kernels of one product cost, two costing 1."""

    class Cost:
        data = 0.0

        def __init__(self, *_: object) -> None: ...

        def __call__(self, graph: Graph) -> float:
            return now if len(graph.operations) == 1 else 1.0

    monkeypatch.setattr(graph_passes, "GraphCost", Cost)
    options = Options(math="fast")
    found, steps = graph_passes.passed(load(low_rank()), options, target_of(options))
    assert [s.rule for s in steps] == ([RULE] if kept else [])
    assert len(found.operations) == (1 if kept else 2)


def test_graph_passes_is_the_default_and_is_said() -> None:
    exe = tw.compile(low_rank(), threads=1, math="fast")
    assert [s["rule"] for s in exe.model.meta["substitutions"]] == [RULE]
    assert len(exe.model.kernels) == 1
    plain = tw.compile(low_rank(), threads=1, math="fast", optimize="off")
    assert "substitutions" not in plain.model.meta and len(plain.model.kernels) == 2


def of_bytes() -> Any:
    """A product whose operands are both dequantized."""
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]>\n'
        "m (uint8[8, 32] q, float s) => (float[8, 16] y) "
        "{ x = DequantizeLinear(q, s) v = DequantizeLinear(w, t) y = MatMul(x, v) }"
    )
    weight = np.random.default_rng(0).integers(-128, 128, (32, 16)).astype(np.int8)
    for name, array in (("w", weight), ("t", np.float32(0.5))):
        tensor = onnx.numpy_helper.from_array(np.asarray(array), name)
        model.graph.initializer.append(tensor)
    return model


@pytest.mark.parametrize("how", ["fast", "search", "saturate"])
def test_products_of_bytes_are_found_before_weights_are_folded(how: str) -> None:
    options = {"optimize": how, "math": "fast", "mcpu": "cascadelake"}
    assert "MatMulInteger" in text(of_bytes(), "graph", **options)


@pytest.mark.parametrize("strategy", modes.STRATEGIES)
def test_weights_in_bytes_stay_in_bytes_for_other_runtimes(strategy: str) -> None:
    graph = tw.optimize(of_bytes(), strategy=strategy).graph
    names = [op.op_type for op in graph.operations]
    assert names.count("DequantizeLinear") == 2
    assert "int8" in [str(v.dtype) for v in graph.constants]


@pytest.mark.parametrize("how", ["fast", "search", "saturate"])
def test_fusions_of_the_graphs_that_a_search_prices_are_not_told(how: str) -> None:
    """Each is told once: pricing plans the same groups, and others that are not compiled."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        m (float[64, 256] x, float[256, 64] w) => (float[64, 64] y) {
          h = MatMul(x, w) y = Relu(h) }
    """)
    (record,) = schedules(model, threads=1, optimize=how)
    assert len(record.fused) == 1, record.fused


def test_fusions_of_bodies_are_told() -> None:
    """Two bodies are planned within the last plan; the plan before it was a priced one."""
    priced, first, second, own = (
        events.Event("fuse", at, None, 0, {}) for at in (1.5, 4, 6, 9)
    )
    spans = [
        events.Event("lower", start, elapsed, 0, {})
        for start, elapsed in ((1, 0.2), (3.5, 0.2), (5.5, 0.2), (3, 5))
    ]
    kept = without_priced([spans[0], priced, spans[1], first, *spans[2:], second, own])
    assert [e for e in kept if e.kind == "fuse"] == [first, second, own]
    assert without_priced([priced]) == [priced]
