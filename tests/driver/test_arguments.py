"""A wrong value of any argument is an InputError that names it and says what to give."""

import inspect
from functools import partial
from pathlib import Path
from typing import get_type_hints

import numpy as np
import onnx.parser
import pytest

import tilewright as tw
from tilewright.base.arguments import (
    ARGUMENTS,
    NAME_OR_NAMES,
    expect,
    expect_choice,
    shown,
)
from tilewright.base.errors import ArgumentError, InputError, TilewrightError
from tilewright.driver import keywords
from tilewright.driver.compile import text

# The loss of one product.
MODEL = onnx.parser.parse_model("""
<ir_version: 10, opset_import: ["" : 21]>
loss (float[4, 2] x, float[2, 1] w) => (float l) {
  y = MatMul(x, w)
  l = ReduceMean<keepdims = 0>(y)
}
""")
SAMPLES = {
    "x": np.ones((8, 4, 2), np.float32),
    "w": np.ones((8, 2, 1), np.float32),
}
# What a caller may give by mistake, for any argument.
WRONG = [
    None, "", "luck", -1, 0, 1.5, float("nan"), float("inf"), [], [1], {}, {"a": 1}, {1: 2},
    b"x", object(), True, np.zeros(3), (1, 2), len, Path("nowhere"),
]  # fmt: skip
FUNCTIONS = {
    "compile": (tw.compile, keywords.CompileOptions),
    "text": (partial(text, kind="graph"), keywords.CompileOptions),
    "optimize": (tw.optimize, keywords.CompileOptions),
    "grad": (tw.grad, keywords.ReadOptions),
    "jvp": (tw.jvp, keywords.ReadOptions),
    "quantize": (partial(tw.quantize, data=SAMPLES), keywords.QuantizeOptions),
    "tune": (partial(tw.tune.__call__, records="records.db"), keywords.TuneOptions),
    "compile_training_step": (
        partial(tw.compile_training_step, loss="l", example_inputs=()),
        keywords.CompileOptions,
    ),
    "compile_library": (
        partial(tw.compile_library, path="m.so"),
        keywords.LibraryOptions,
    ),
}
# Without a row: what is read (the source, data), and what is checked where it is used.
ELSEWHERE = {
    "activations", "aliases", "data", "dynamic_shapes", "external_data_roots", "fallback",
    "how", "kernel", "kind", "loss_scale", "math", "method", "metric", "model", "optimize",
    "optimizer", "percentile", "precision", "records", "rounding", "scales", "schedules",
    "source", "strategy",
}  # fmt: skip
# Used only for a torch.nn.Module: the inputs to trace it with.
TRACED = {"example_inputs"}


def arguments_of(function, typed):
    named = inspect.signature(function).parameters.values()
    return {p.name for p in named if p.kind is not p.VAR_KEYWORD} | set(
        get_type_hints(typed)
    )


EVERY = sorted(
    (called, name) for called, of in FUNCTIONS.items() for name in arguments_of(*of)
)


@pytest.mark.parametrize(("called", "name"), EVERY)
def test_every_argument_is_in_the_table_or_checked_elsewhere(called, name):
    assert (name in ARGUMENTS) != (name in ELSEWHERE)


# What a function takes that the others do not: several processors, a loss that is left out.
ELSE = {
    ("compile_library", "mcpu"): NAME_OR_NAMES,
    ("grad", "loss"): ARGUMENTS["loss"].optional,
}
CHECKED = [pair for pair in EVERY if pair[1] in ARGUMENTS.keys() - TRACED]


@pytest.mark.parametrize(("called", "name"), CHECKED)
def test_a_wrong_value_is_refused_by_name(called, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kind = ELSE.get((called, name), ARGUMENTS[name])
    function, _ = FUNCTIONS[called]
    wrong = [value for value in WRONG if not kind.holds(value)]
    assert len(wrong) >= 8  # the kind refuses most of them
    for value in wrong:
        with pytest.raises(InputError) as caught:
            function(MODEL, **{name: value})
        assert caught.value.message.startswith(f"{name}="), value
        assert caught.value.hint


@pytest.mark.parametrize(
    ("called", "name"),
    [
        ("compile", "math"), ("compile", "fallback"), ("compile", "optimize"),
        ("compile", "precision"), ("compile", "scales"), ("compile", "aliases"),
        ("compile", "schedules"), ("compile", "records"), ("compile", "external_data_roots"),
        ("quantize", "metric"), ("quantize", "method"), ("quantize", "rounding"),
        ("quantize", "activations"), ("optimize", "strategy"), ("text", "kind"),
        ("tune", "how"), ("compile_training_step", "loss_scale"),
    ],
)  # fmt: skip
def test_what_is_checked_elsewhere_is_refused_by_name_too(called, name):
    for value in (3, float("nan"), [1], {1: 2}, object(), np.zeros(3)):
        with pytest.raises(InputError) as caught:
            FUNCTIONS[called][0](MODEL, **{name: value})
        assert name in caught.value.message
        assert caught.value.hint


def test_what_is_right_passes():
    rights = {
        "dims": {},
        "threads": np.int64(2),
        "inputs": {"w"},
        "smooth": np.float32(0.5),
    }
    expect(**rights, trials=1, seconds=0.5, expected_gain=0, by="x", remat=1 << 20)
    expect_choice("math", "fast", ("exact", "fast"))


def test_a_switch_is_no_text():
    """A text that means no would otherwise turn on what runs code from a file."""
    with pytest.raises(ArgumentError, match="trust='no'; give True or False"):
        tw.compile(MODEL, trust="no")


def test_a_large_value_is_shown_in_part():
    with pytest.raises(ArgumentError) as caught:
        tw.compile(MODEL, dims=np.zeros((40, 40)))
    assert len(str(caught.value)) < 200
    assert "\n" not in shown("a\nb" * 100) and len(shown("a" * 1000)) == 80


@pytest.mark.parametrize("feeds", [None, "", 3, [1], np.zeros(3), ()])
def test_inputs_by_name_are_a_mapping(feeds):
    with pytest.raises(InputError, match="feeds: expected a mapping"):
        tw.compile(MODEL).run(feeds)


@pytest.mark.parametrize(
    "option", ["repeat", "peak_gflops", "peak_gbs", "device_peaks"]
)
def test_the_options_of_a_profile(option):
    exe = tw.compile(MODEL)
    given = {"x": np.ones((4, 2), np.float32), "w": np.ones((2, 1), np.float32)}
    for value in ("luck", -1, float("nan"), [1], np.zeros(3)):
        with pytest.raises(ArgumentError, match=f"{option}="):
            exe.profile(given, **{option: value})


def test_the_options_of_loading(tmp_path):
    path = tmp_path / "m.tw"
    tw.compile(MODEL).save(path)
    for option in ("threads", "verify"):
        with pytest.raises(ArgumentError, match=f"{option}="):
            tw.load(path, **{option: "luck"})


@pytest.mark.parametrize("model", [None, 3, b"x", [], {}, "luck.onnx"])
def test_what_cannot_be_trained(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "luck.onnx").write_bytes(b"\xff\xff")
    with pytest.raises(TilewrightError) as caught:
        tw.compile_training_step(model, "l")
    assert caught.value.hint
