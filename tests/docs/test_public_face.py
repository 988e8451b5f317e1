"""What `help()` says of the public names: each has its own text, which names its parameters."""

import inspect
import re
import types

import pytest

import tilewright as tw

NOTATIONS = ("te", "halide", "mdh", "lift")
# Constants and tables, of which help() shows the value.
DATA = (str, int, float, tuple, frozenset, dict, types.ModuleType)


def public(module: types.ModuleType) -> dict[str, object]:
    found = {name: getattr(module, name) for name in module.__all__}
    return {n: o for n, o in found.items() if not isinstance(o, DATA)}


@pytest.mark.parametrize("notation", ["", *NOTATIONS])
def test_every_public_name_has_a_text_of_its_own(notation: str) -> None:
    module = getattr(tw, notation) if notation else tw
    assert module.__doc__
    names = public(module)
    assert len(names) > 5
    silent = [
        n for n, o in names.items() if not (getattr(o, "__doc__", "") or "").strip()
    ]
    assert silent == []


@pytest.mark.parametrize(
    "name", [n for n, o in public(tw).items() if inspect.isfunction(o)]
)
def test_the_text_of_a_function_names_its_parameters(name: str) -> None:
    function = getattr(tw, name)
    parameters = inspect.signature(function).parameters
    text = function.__doc__
    missing = [p for p in parameters if not re.search(rf"\b{p}\b", text)]
    assert missing == []
    assert "Raises" in text, "what it raises"


def test_methods_and_properties_of_the_main_classes_have_texts() -> None:
    for name in ("Executable", "Graph", "DType"):
        for member, value in vars(getattr(tw, name)).items():
            if isinstance(value, types.FunctionType | property) and member[0] != "_":
                assert value.__doc__, f"{name}.{member}"
