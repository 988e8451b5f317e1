"""What editors complete is what is checked: the types of `**options` beside their table."""

import ast
import inspect
from dataclasses import fields
from pathlib import Path
from typing import get_args, get_type_hints

import onnx.parser
import pytest

import tilewright as tw
from tilewright.base import modes
from tilewright.base.errors import InputError, TilewrightError
from tilewright.driver import keywords, options, program_tuning
from tilewright.driver.training import compile_training_step
from tilewright.driver.validate import validate_model
from tilewright.graph.quantize.observers import METHODS
from tilewright.graph.quantize.recipe import QuantizationRecipe
from tilewright.llm import load, load_embedder
from tilewright.llm.serve.server import serve

OPTIONS = {f.name for f in fields(options.Options) if f.init}
READING = set(get_type_hints(keywords.ReadOptions))
# Derivatives are not compiled; `by` is there what they are of.
MEANINGLESS = {keywords.ReadOptions: OPTIONS - READING}


@pytest.mark.parametrize(
    ("function", "typed"),
    [
        (tw.compile, keywords.CompileOptions),
        (tw.optimize, keywords.CompileOptions),
        (compile_training_step, keywords.CompileOptions),
        (tw.grad, keywords.ReadOptions),
        (tw.value_and_grad, keywords.ReadOptions),
        (tw.jvp, keywords.ReadOptions),
        (tw.compile_library, keywords.LibraryOptions),
        (validate_model, keywords.ValidateOptions),
        (tw.tune.__call__, keywords.TuneOptions),
        (load, keywords.ModelOptions),
        (load_embedder, keywords.EncoderOptions),
    ],
)
def test_every_option_is_typed_or_named(function, typed):
    found = inspect.signature(function).parameters
    *_, rest = found.values()
    assert rest.annotation == f"Unpack[{typed.__name__}]"
    expected = OPTIONS - set(found) - MEANINGLESS.get(typed, set())
    assert set(get_type_hints(typed)) == expected


def test_a_server_takes_what_a_model_does():
    *_, rest = inspect.signature(serve).parameters.values()
    assert rest.annotation == "Unpack[ServeOptions]"
    named = {p.name for p in inspect.signature(load).parameters.values()}
    expected = named - {"folder", "options"} | set(
        get_type_hints(keywords.ModelOptions)
    )
    assert set(get_type_hints(keywords.ServeOptions)) == expected


@pytest.mark.parametrize("name", sorted(OPTIONS - READING - {"by"}))
@pytest.mark.parametrize("function", [tw.grad, tw.value_and_grad, tw.jvp])
def test_a_derivative_refuses_options_of_compilation(function, name):
    default = getattr(options.Options(), name)
    with pytest.raises(InputError, match=f"{name}: a derivative is a Graph"):
        function(b"", **{name: default})


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("memory_limit", 1, "bytes"),
        ("inputs", ["q"], "no input with a default"),
        ("dynamic_shapes", {}, "only a torch.nn.Module is traced"),
    ],
)
def test_a_derivative_is_of_a_model_that_is_read_by_the_options(name, value, said):
    source = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 22]> '
        "g (float[3] x) => (float y) { y = ReduceSum<keepdims=0>(x) }"
    )
    with pytest.raises(TilewrightError, match=said):
        tw.grad(source, **{name: value})


@pytest.mark.parametrize(
    ("typed", "known"),
    [
        (keywords.Math, modes.MATH),
        (keywords.Precision, modes.PRECISION),
        (keywords.Fallback, modes.FALLBACK),
        (keywords.Optimize, modes.OPTIMIZE),
        (get_type_hints(keywords.QuantizeOptions)["method"], tuple(METHODS)),
    ],
)
def test_choices_are_those_that_are_accepted(typed, known):
    assert get_args(typed) == tuple(known)


def test_a_quantization_takes_the_fields_of_its_recipe():
    assert set(keywords.QuantizeOptions.__annotations__) == {
        f.name for f in fields(QuantizationRecipe)
    }


def test_programs_are_tuned_by_typed_settings():
    named = inspect.signature(program_tuning.tune_program).parameters.values()
    settings = {p.name for p in named if p.kind is p.KEYWORD_ONLY}
    assert set(keywords.TuneSettings.__annotations__) == settings


def test_type_checkers_see_the_public_names():
    tree = ast.parse(Path(tw.__file__).read_text())
    [block] = [n for n in tree.body if isinstance(n, ast.If)]
    imported = [alias for n in block.body for alias in n.names]
    assert {a.asname or a.name for a in imported} == set(tw._PUBLIC) - {"tune"}
