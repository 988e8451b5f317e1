"""Errors: one line, all their parts, and no loss on the way between processes."""

import pickle

import pytest

from tilewright.base import errors
from tilewright.base.errors import ModelError, TilewrightError, UnsupportedError

SUBCLASSES = [
    getattr(errors, name) for name in errors.__all__ if name.endswith("Error")
]


def test_the_text_is_one_line_with_place_message_and_hint():
    error = ModelError("unexpected\n  end.", where="model.onnx", hint="Export it again")
    assert str(error) == "model.onnx: unexpected end. Export it again"
    assert str(ModelError("bare")) == "bare"
    assert str(ModelError("bare", hint="Try x")) == "bare. Try x"


def test_a_caller_may_add_the_place():
    assert (
        str(ModelError("bad", where="node 'n'").at("m.onnx")) == "m.onnx: node 'n': bad"
    )
    assert str(ModelError("bad").at("m.onnx")) == "m.onnx: bad"
    twice = ModelError("bad", where="buffer b").at("kernel c").at("kernel c")
    assert str(twice) == "kernel c: buffer b: bad"
    assert (
        str(ModelError("bad").at("kernel c").at("kernel cc"))
        == "kernel cc: kernel c: bad"
    )


@pytest.mark.parametrize("cls", SUBCLASSES)
def test_each_class_has_a_code_and_survives_pickling(cls):
    error = cls("what", where="here", hint="do", code=None)
    assert error.code.startswith("TW-")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is cls
    assert isinstance(copy, TilewrightError)
    assert copy.to_dict() == error.to_dict()
    assert copy.args == error.args


def test_codes_differ_and_can_be_given():
    codes = [cls.code for cls in SUBCLASSES]
    assert len(set(codes)) == len(codes)
    assert ModelError("x", code="TW-MODEL-CYCLE").code == "TW-MODEL-CYCLE"
    assert ModelError("x").code == "TW-MODEL"


def test_unsupported_lists_everything():
    error = UnsupportedError("2 operators", items=(f"op{i}" for i in range(2)))
    assert error.items == ("op0", "op1")
    assert error.to_dict()["items"] == ["op0", "op1"]
    assert pickle.loads(pickle.dumps(error)).items == error.items
