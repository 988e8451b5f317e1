"""Modules whose arguments and results nest are called, and answer, as PyTorch's own."""

import sys
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

import tilewright as tw
from tilewright.base.errors import ArtifactError, InputError
from tilewright.runtime.nesting import (
    ArgumentNesting,
    ContainerNode,
    FixedLeaf,
    RecordFields,
    show,
)

torch = pytest.importorskip("torch")


class Scores(NamedTuple):
    low: Any
    high: Any


@dataclass
class Answer:
    logits: Any
    hidden: Any = None
    states: Any = None


torch.export.register_dataclass(
    Answer, serialized_type_name="tests.frontends.test_nesting.Answer"
)


class Module(torch.nn.Module):
    def forward(self, batch, x, scale=2, *, shift):
        y = batch["p"] + batch["q"][0] * scale
        return {
            "sum": y + shift,
            "all": [x + 1.0, None, scale],
            "pair": Scores(y - x, y + x),
            "one": (x * 2.0,),
            "answer": Answer(logits=y.exp(), states=(x - 1.0, y - 1.0)),
            "ordered": OrderedDict(b=x + 3.0),
        }


def _arrays():
    numbers = np.random.default_rng(0)
    return [numbers.standard_normal((2, 3), np.float32) for _ in range(4)]


def _same(found, expected):
    """Equal in every class, key and tensor."""
    assert type(found) is type(expected)
    if isinstance(expected, Answer):
        found, expected = vars(found), vars(expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        found, expected = list(found.values()), list(expected.values())
    if isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            _same(a, b)
    elif isinstance(expected, torch.Tensor):
        assert torch.allclose(found, expected)
    else:
        assert found == expected


@pytest.fixture(scope="module")
def made():
    p, q, x, shift = map(torch.from_numpy, _arrays())
    program = torch.export.export(
        Module(), ({"p": p, "q": (q,)}, x, 5), {"shift": shift}
    )
    return program, tw.compile(program)


def test_results_are_what_the_module_gives(made):
    p, q, x, shift = map(torch.from_numpy, _arrays())
    given = {"p": p, "q": (q,)}
    expected = Module()(given, x, 5, shift=shift)
    _same(made[1](given, x, 5, shift=shift), expected)
    _same(made[1](batch={"q": [q], "p": p}, x=x, shift=shift), expected)


def test_tensors_can_be_given_by_their_names(made):
    exe, arrays = made[1], _arrays()
    names = [t.name for t in exe.inputs]
    assert names == ["batch_p", "batch_q_0", "x", "shift"]
    feeds = dict(zip(names, arrays, strict=True))
    by_name = exe(feeds)
    assert np.array_equal(by_name["pair"].low, exe(**feeds)["pair"].low)
    flat = exe.run(feeds)
    assert [type(a) for a in flat] == [np.ndarray] * len(exe.outputs)
    assert np.array_equal(flat[0], by_name["sum"])


def test_an_artifact_keeps_it_and_imports_nothing(made, tmp_path, monkeypatch):
    made[1].save(tmp_path / "m.tw")
    p, q, x, shift = map(torch.from_numpy, _arrays())
    expected = Module()({"p": p, "q": (q,)}, x, 5, shift=shift)
    _same(tw.load(tmp_path / "m.tw")({"p": p, "q": (q,)}, x, shift=shift), expected)
    module = sys.modules[__name__]
    monkeypatch.setattr("tilewright.runtime.nesting._KNOWN", {})
    monkeypatch.delattr(module, "Answer")
    monkeypatch.delattr(module, "Scores")
    found = tw.load(tmp_path / "m.tw")({"p": p, "q": (q,)}, x, shift=shift)
    assert type(found["answer"]) is RecordFields
    assert list(found["answer"]) == ["logits", "states"]
    assert torch.allclose(found["answer"].logits, expected["answer"].logits)
    assert found["pair"]._fields == ("low", "high")
    with pytest.raises(AttributeError, match="no field 'hidden'"):
        _ = found["answer"].hidden


class _Dictionary(torch.nn.Module):
    def forward(self, x):
        return {"twice": x * 2.0, "parts": [x + 1.0, (x - 1.0,)]}


class _Ordered(torch.nn.Module):
    def forward(self, x):
        return {"sorted": x.sort(), "best": torch.topk(x, 1), "shape": (x + 1).sum()}


def test_pytorchs_named_tuples_are_kept(tmp_path, monkeypatch):
    x = torch.tensor([[3.0, 1.0, 2.0]])
    exe = tw.compile(_Ordered(), x)
    found = exe(x)
    assert type(found["sorted"]) is torch.return_types.sort
    assert type(found["best"]) is torch.return_types.topk
    _same(found, _Ordered()(x))
    exe.save(tmp_path / "m.tw")
    monkeypatch.setattr("tilewright.runtime.nesting._KNOWN", {})
    monkeypatch.delitem(sys.modules, "torch.return_types")
    read = tw.load(tmp_path / "m.tw")(x.numpy())["sorted"]
    assert read._fields == ("values", "indices")
    assert read.indices.tolist() == [[1, 2, 0]]


def test_a_saved_program_keeps_it(tmp_path):
    x = torch.ones(2, 3)
    path = tmp_path / "m.pt2"
    torch.export.save(torch.export.export(_Dictionary(), (x,)), path)
    for _ in range(2):  # the second time from the cache of models
        _same(tw.compile(path)(x), _Dictionary()(x))


def test_dynamic_shapes_keep_it():
    rows = torch.export.Dim("rows")
    exe = tw.compile(_Dictionary(), torch.ones(2, 3), dynamic_shapes={"x": {0: rows}})
    for n in (4, 5):
        _same(exe(torch.ones(n, 3)), _Dictionary()(torch.ones(n, 3)))
    assert "x: float32[rows, 3]" in repr(exe)
    assert repr(exe).endswith("2 compiled shapes)")


@pytest.mark.parametrize(
    "result",
    [lambda x: (x + 1.0,), lambda x: [x + 1.0, x], lambda x: x + 1.0, lambda x: (x, x)],
    ids=["tuple of one", "list", "tensor", "tuple"],
)
def test_a_single_result_is_not_taken_for_a_tuple(result):
    class Simple(torch.nn.Module):
        def forward(self, x):
            return result(x)

    x = torch.ones(3)
    _same(tw.compile(Simple(), x)(x), Simple()(x))


def test_a_class_of_the_same_name_with_other_fields_is_not_taken():
    other = namedtuple("Scores", ["low", "middle"])
    tree = ContainerNode("namedtuple", ("a", "b"), ("low", "high"), "nowhere:Scores")
    nesting = ArgumentNesting((("x", "x"),), 1, tree)
    assert nesting.restore({"a": 1, "b": 2}).high == 2
    assert not isinstance(nesting.restore({"a": 1, "b": 2}), other)
    popen = ContainerNode("record", ("a",), ("args",), "subprocess:Popen")
    found = ArgumentNesting((), 0, popen).restore({"a": ["false"]})
    assert type(found) is RecordFields


def _refused(exe, *args, **named):
    with pytest.raises(InputError) as error:
        exe(*args, **named)
    return str(error.value)


def test_other_arguments_are_refused(made):
    p, q, x, s = _arrays()
    exe, good = made[1], {"p": p, "q": (q,)}
    wrong = _refused(exe, {"p": p}, x, shift=s)
    assert "argument 'batch': expected {'p': batch_p, 'q': (batch_q_0,)}" in wrong
    assert "argument 'batch', 'q': expected (batch_q_0,)" in _refused(
        exe, {"p": p, "q": (q, q)}, x, shift=s
    )
    assert "got dict of 'p', 'q', 'r'" in _refused(exe, {**good, "r": p}, x, shift=s)
    assert "argument 'x': expected a tensor" in _refused(exe, good, (x,), shift=s)
    assert "missing argument 'shift'" in _refused(exe, good, x)
    assert "no argument is called 'y'" in _refused(exe, good, x, shift=s, y=1)
    assert "given twice" in _refused(exe, good, x, x=x, shift=s)
    assert "4 arguments given by position, 3 can be" in _refused(exe, good, x, 5, s)
    changed = _refused(exe, good, x, 6, shift=s)
    assert "argument 'scale' was 5 when the module was traced, got 6" in changed


def test_an_array_is_not_compared_with_a_number(made):
    p, q, x, s = _arrays()
    assert "was 5" in _refused(made[1], {"p": p, "q": (q,)}, x, x, shift=s)


def test_what_is_kept_reads_back(made):
    nesting = made[1].nesting
    names = [t.name for t in made[1].inputs], [t.name for t in made[1].outputs]
    assert ArgumentNesting.of({"nesting": nesting.to_json()}, *names) == nesting
    assert show(nesting.arguments[2][1]) == "5"


@pytest.mark.parametrize(
    "damage",
    [
        {"arguments": [["x", {"kind": "subprocess.Popen"}]]},
        {"arguments": [["x", 3]]},
        {"arguments": [["x", {"value": [1]}]]},
        {"results": {"kind": "dict", "parts": ["y"], "keys": [], "of": ""}},
        {"results": {"kind": "set", "parts": ["y"], "keys": [], "of": ""}},
        {"results": "z"},
        {"positional": "many"},
    ],
)
def test_damaged_data_is_refused(damage):
    good = {"arguments": [["x", "x"]], "positional": 1, "results": "y"}
    assert ArgumentNesting.of({"nesting": good}, ["x"], ["y"]) is not None
    with pytest.raises(ArtifactError, match="nest"):
        ArgumentNesting.of({"nesting": good | damage}, ["x"], ["y"])


def test_a_graph_with_other_outputs_has_no_nesting(made):
    nesting = made[1].nesting
    inputs = [t.name for t in made[1].inputs]
    outputs = [t.name for t in made[1].outputs]
    assert nesting.fits(inputs, outputs)
    assert not nesting.fits(inputs, outputs[1:])
    assert not nesting.fits([*inputs, "more"], outputs)
    assert FixedLeaf(5, "n") != FixedLeaf(5)
