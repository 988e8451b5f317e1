"""`tilewright optimize`: an equal model that costs less; its steps are written and replayed."""

from __future__ import annotations

import json
import re
import signal

import numpy as np
import onnx
import onnx.parser
import pytest

from tilewright.cli import app
from tilewright.frontends.onnx import load
from tilewright.frontends.onnx.reference import OnnxFallback
from tilewright.graph import interp

CHAIN = """
<ir_version: 8, opset_import: ["" : 17]>
chain (float[N, 32] x, float[N, 32] scale) => (float[N, 8] y, float[N, 32] z) <
  float[32, 16] a, float[16, 8] b
> { z = Mul(x, scale) m = MatMul(z, a) y = MatMul(m, b) }
"""


@pytest.fixture
def model(tmp_path):
    made = onnx.parser.parse_model(CHAIN)
    rng = np.random.default_rng(0)
    for name, shape in (("a", (32, 16)), ("b", (16, 8))):
        weight = rng.normal(size=shape).astype(np.float32)
        made.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    path = tmp_path / "chain.onnx"
    onnx.save(made, path)
    return path


def run(*arguments):
    return app.run(["optimize", *map(str, arguments)])


def results(path):
    rng = np.random.default_rng(1)
    feeds = {n: rng.normal(size=(4, 32)).astype(np.float32) for n in ("x", "scale")}
    found = interp.evaluate(load(path), feeds, fallback=OnnxFallback())
    return {name: found[name] for name in ("y", "z")}


FEWER = ("--dim", "N=4", "--cost", "launches", "--threads", "1", "--math", "fast")


def test_a_model_is_written_that_any_runtime_runs(model, tmp_path, capsys):
    better = tmp_path / "better.onnx"
    assert run(model, "-o", better, *FEWER) == 0
    out = capsys.readouterr().out
    assert "product-from-the-right" in out and "times less" in out
    onnx.checker.check_model(str(better), full_check=True)
    kinds = [node.op_type for node in onnx.load(better).graph.node]
    assert sorted(kinds) == ["MatMul", "Mul"]
    for name, array in results(better).items():
        np.testing.assert_allclose(array, results(model)[name], rtol=1e-5, atol=1e-5)
    ort = pytest.importorskip("onnxruntime")
    session = ort.InferenceSession(str(better), providers=["CPUExecutionProvider"])
    assert [o.name for o in session.get_outputs()] == ["y", "z"]


def test_steps_are_replayed_to_the_same_bytes(model, tmp_path, capsys):
    first, second, steps = (tmp_path / n for n in ("a.onnx", "b.onnx", "s.json"))
    assert run(model, "-o", first, "--derivation", steps, *FEWER) == 0
    assert run(model, "-o", second, "--replay", steps, "--dim", "N=4") == 0
    assert first.read_bytes() == second.read_bytes()
    assert run(model, "-o", second, "--replay", steps, "--dim", "N=5") == 1
    assert "another graph" in capsys.readouterr().err
    assert first.read_bytes() == second.read_bytes()


def test_json_has_the_whole_derivation(model, tmp_path, capsys):
    assert run(model, "-o", tmp_path / "b.onnx", *FEWER, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    (step,) = facts["steps"]
    assert step["rule"] == "product-from-the-right"
    assert step["before"] > step["after"]
    assert facts["before"] > facts["after"] and not facts["interrupted"]


def test_what_cannot_be_lowered_is_written_as_it_was(model, tmp_path, capsys):
    better = tmp_path / "better.onnx"
    arguments = ("--dim", "N=4", "--cost", "launches", "--math", "exact")
    assert run(model, "-o", better, *arguments) == 0
    told = capsys.readouterr()
    assert "no substitution lowers it" in told.out and not told.err
    assert len(onnx.load(better).graph.node) == 3


def test_a_mix_of_costs_is_a_sum(model, tmp_path, capsys):
    mixed = ("--dim", "N=4", "--cost", "time*0+launches*2", "--json")
    assert run(model, "-o", tmp_path / "b.onnx", *mixed) == 0
    twice = json.loads(capsys.readouterr().out)
    assert run(model, "-o", tmp_path / "b.onnx", *FEWER, "--json") == 0
    once = json.loads(capsys.readouterr().out)
    assert twice["before"] == 2 * once["before"]


@pytest.mark.parametrize(
    ("cost", "unit"),
    [
        ("time", " s"),
        ("measured", " s"),
        ("flops", " operations"),
        ("bytes", " bytes"),
        ("launches", " launches"),
        ("time+measured", " s"),
        ("time*2", ""),
        ("time+launches*1e-6", ""),
        ("time+launches", ""),
    ],
)
def test_a_cost_has_its_unit(model, tmp_path, capsys, cost, unit):
    out = tmp_path / "better.onnx"
    assert run(model, "-o", out, "--dim", "N=4", "--cost", cost, "--threads", "1") == 0
    said = capsys.readouterr().out.splitlines()[-1]
    assert re.search(rf"cost [0-9.e+-]+{unit}( ->|:)", said), said


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--cost", "speed"), 2, "unknown cost 'speed'"),
        (("--cost", "time*fast"), 2, "'fast' is not a number"),
        (("--cost", "time*0"), 2, "every weight is 0"),
        (("--cost", "time+time*-3"), 2, "the weight of 'time' is -2.0"),
        (("--patience", "0"), 2, "a patience of 0"),
        (("--cost", "time*-1"), 2, "the weight of 'time' is -1.0"),
        (("--alpha", "0.5"), 2, "alpha is 0.5"),
        (("--budget", "0"), 2, "a budget of 0"),
        (("--patience", "-1"), 2, "a patience of -1"),
        (("--replay", "none.json"), 1, "none.json"),
        (("--replay", "none.json", "--alpha", "2"), 2, "--alpha: --replay searches"),
    ],
)
def test_bad_usage_is_named_and_nothing_is_written(
    model, tmp_path, capsys, arguments, code, message
):
    better = tmp_path / "better.onnx"
    assert run(model, "-o", better, "--dim", "N=4", *arguments) == code
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error
    assert not better.exists()


def test_symbolic_shapes_are_asked_for(model, capsys):
    assert run(model) == 1
    assert "--dim N=1" in capsys.readouterr().err


def test_a_replay_of_no_steps_says_that_nothing_changed(model, tmp_path, capsys):
    steps = tmp_path / "s.json"
    exact = ("--dim", "N=4", "--cost", "launches", "--math", "exact")
    assert run(model, "-o", tmp_path / "a.onnx", *exact, "--derivation", steps) == 0
    capsys.readouterr()
    replayed = ("--replay", steps, "--dim", "N=4", "--math", "exact")
    assert run(model, "-o", tmp_path / "b.onnx", *replayed) == 0
    out = capsys.readouterr().out
    assert "there are no steps, the model is as it was; 3 operations" in out


def test_a_derivation_that_is_missing_is_named_once(model, tmp_path, capsys):
    gone = tmp_path / "gone.json"
    assert run(model, "--replay", gone, "--dim", "N=4") == 1
    told = capsys.readouterr().err
    assert "--replay cannot be read: No such file or directory. " in told
    assert "Errno" not in told and told.count(str(gone)) == 1


@pytest.mark.parametrize("text", ["{}", "[]", "[" * 100_000])
def test_a_file_that_is_no_derivation_is_refused(text, model, tmp_path, capsys):
    file = tmp_path / "s.json"
    file.write_text(text)
    assert run(model, "--replay", file, "--dim", "N=4") == 1
    assert "s.json: derivation: it is not a derivation" in capsys.readouterr().err


def test_an_interrupt_keeps_the_best_so_far(model, tmp_path, capsys, monkeypatch):
    """Ctrl-C while the second graph is priced: the first step is there, the search is over."""
    from tilewright.driver import graph_cost

    asked = []
    of_plan = graph_cost.OF_PLAN["launches"]

    def pressing(plan, target):
        asked.append(plan)
        if len(asked) == 2:
            signal.raise_signal(signal.SIGINT)
        return of_plan(plan, target)

    monkeypatch.setitem(graph_cost.OF_PLAN, "launches", pressing)
    better = tmp_path / "better.onnx"
    assert run(model, "-o", better, *FEWER, "--json") == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["interrupted"]
    assert "writing the best so far" in told.err
    onnx.checker.check_model(str(better), full_check=True)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_before_the_first_cost_writes_nothing(
    model, tmp_path, capsys, monkeypatch
):
    from tilewright.driver import substitution

    prepared = substitution._prepared

    def pressing(graph, options):
        signal.raise_signal(signal.SIGINT)
        return prepared(graph, options)

    monkeypatch.setattr(substitution, "_prepared", pressing)
    better = tmp_path / "better.onnx"
    assert run(model, "-o", better, *FEWER) == 1
    told = capsys.readouterr().err
    assert "the search had not begun: nothing was written" in told
    assert not better.exists()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("name", ["--time", "--seconds"])
def test_a_search_that_its_time_ends_says_so(name, model, tmp_path, capsys):
    given = ("--dim", "N=4", "--cost", "launches", name, "0.001s")
    assert run(model, "-o", tmp_path / "better.onnx", *given) == 0
    told = capsys.readouterr()
    assert "none found so far lowers it" in told.out
    assert "not finished; more --time may find more" in told.err


def test_a_limit_of_time_by_its_former_name_is_told_the_new_one(
    model, tmp_path, capsys
):
    """A replay, which searches nothing, refuses both."""
    better, steps = tmp_path / "better.onnx", tmp_path / "steps.json"
    for name in ("--time", "--seconds"):
        assert run(model, "-o", better, *FEWER, name, "2m", "--derivation", steps) == 0
        told = "--seconds is called --time now" in capsys.readouterr().err
        assert told == (name == "--seconds")
    for name in ("--time", "--seconds"):
        assert run(model, "--dim", "N=4", "--replay", steps, name, "2m") == 2
        assert f"{name}: --replay searches nothing" in capsys.readouterr().err


def test_compile_and_run_say_what_they_took(tmp_path, capsys):
    path = wide(tmp_path)
    how = ("--optimize", "search", "--threads", "1", "--math", "fast")
    assert app.run(["compile", str(path), *how]) == 0
    said = "optimized: 1 substitution: 1 x product-from-the-right"
    assert said in capsys.readouterr().out
    assert app.run(["run", str(path), *how, "--profile", "--why"]) == 0
    out = capsys.readouterr().out
    assert said in out
    assert "product-from-the-right  MatMul -> y" in out.replace("| ", "")
    assert app.run(["run", str(path), *how, "--json"]) == 0
    (step,) = json.loads(capsys.readouterr().out)["substitutions"]
    assert step["rule"] == "product-from-the-right"
    assert app.run(["run", str(path), "--optimize", "most"]) == 2
    assert app.run(["run", str(path.with_suffix(".tw")), "--optimize", "fast"]) == 2
    assert "already compiled" in capsys.readouterr().err


def wide(folder):
    """A product of three matrices, of which the first costs most."""
    made = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> wide (float[64, 256] x) => '
        "(float[64, 64] y) <float[256, 256] a, float[256, 64] b> "
        "{ m = MatMul(x, a) y = MatMul(m, b) }"
    )
    rng = np.random.default_rng(0)
    for name, shape in (("a", (256, 256)), ("b", (256, 64))):
        weight = rng.normal(size=shape).astype(np.float32)
        made.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    path = folder / "wide.onnx"
    onnx.save(made, path)
    return path


def test_a_folder_that_is_not_there_is_named_before_the_search(model, tmp_path, capsys):
    for flag in ("-o", "--derivation"):
        place = tmp_path / "no" / "file"
        assert run(model, *FEWER, flag, place) == 1
        err = capsys.readouterr().err
        assert (
            str(place) in err and "does not exist" in err and len(err.splitlines()) == 1
        )
    made = sorted(p.name for p in tmp_path.iterdir())
    assert made == ["chain.onnx"]


def test_saturation_is_another_strategy(model, tmp_path, capsys):
    steps, made = tmp_path / "steps.json", tmp_path / "a.onnx"
    how = (*FEWER, "--strategy", "saturate")
    assert run(model, "-o", made, *how, "--derivation", steps) == 0
    assert "product-from-the-right" in capsys.readouterr().out
    again = tmp_path / "b.onnx"
    assert run(model, "-o", again, "--replay", steps, "--dim", "N=4") == 0
    for name, array in results(made).items():
        np.testing.assert_array_equal(results(again)[name], array)
    capsys.readouterr()
    assert run(model, *how, "--alpha", "1.1", "--patience", "3") == 2
    err = capsys.readouterr().err
    assert "--alpha, --patience: --strategy saturate has no such limit" in err
    assert run(model, *how, "--replay", steps) == 2
    assert "--strategy" in capsys.readouterr().err
