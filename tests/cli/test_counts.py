"""What is said of one thing is in the singular: by each command, on its page, and in errors."""

import html
import re

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tests.cli.conftest import make
from tilewright.base.errors import InputError

# "1 kernels" and "1 host fallbacks"; neither "0.1 seconds" nor "1 has".
FALSE_PLURAL = re.compile(
    r"(?<![\w.,:=-])1 (?:host |interleaved )?(?!is\b|has\b|falls\b)[a-z]+s\b"
)
COMMANDS = {
    "run": "run MODEL --profile --repeat 1 --threads 1",
    "compile": "compile MODEL -o made.tw",
    "library": "compile MODEL -o made.so",
    "plan": "compile MODEL --emit plan",
    "memory": "compile MODEL --emit memory",
    "verify": "verify MODEL",
    "check": "check MODEL",
    "check without fallbacks": "check FOREIGN --fallback error",
    "explain": "explain MODEL -o made.html --no-roofline --threads 1",
    "bench": "bench MODEL --rounds 1 --seconds 0.01 --against= --threads 1",
    "optimize": "optimize MODEL -o made.onnx",
    "tune": "tune MODEL --trials 1 --threads 1",
    "quantize": "quantize MODEL -o made.onnx --sample x.npz",
    "cache": "cache clear",
}


def one_operator(op="Relu", dtype=TensorProto.FLOAT):
    """On one element."""
    node = helper.make_node(op, ["x"], ["y"], "only")
    return make([node], {"x": (dtype, [1, 1])}, {"y": (dtype, [1, 1])})


def foreign():
    """Without native code."""
    return one_operator("StringNormalizer", TensorProto.STRING)


def false_plurals(text):
    return FALSE_PLURAL.findall(html.unescape(re.sub(r"<[^>]*>", "\n", text)))


def test_what_counts_as_false():
    wrong = "1 kernels, 1 host fallbacks; 1 interleaved rounds"
    assert len(false_plurals(wrong)) == 3
    assert not false_plurals("0.1 seconds, 21 kernels, 1 kernel, 1 of 2 kernels, x1 is")


@pytest.mark.filterwarnings("ignore::tilewright.TilewrightWarning")
@pytest.mark.parametrize("line", COMMANDS.values(), ids=COMMANDS)
def test_one_is_no_plural(command, tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)
    onnx.save(one_operator(), "one.onnx")
    onnx.save(foreign(), "foreign.onnx")
    np.savez("x.npz", x=np.ones((1, 1), np.float32))
    names = {"MODEL": "one.onnx", "FOREIGN": "foreign.onnx"}
    found = command(*(names.get(word, word) for word in line.split()))
    pages = [p.read_text() for p in tmp_path.glob("*.html")]
    assert found.out or found.err
    assert not false_plurals("\n".join([found.out, found.err, *pages]))


def test_errors_of_a_call_count_too():
    exe = tw.compile(one_operator(), cache=False)
    x = np.ones((1, 1), np.float32)
    said = []
    for call in (lambda: exe(x, x), lambda: exe(x, out=[]), lambda: exe(x, out=[x, x])):
        with pytest.raises(InputError) as error:
            call()
        said.append(str(error.value))
    assert "the model 1 output" in said[1]
    assert not false_plurals("\n".join(said))


def test_the_warning_of_one_operator_without_native_code():
    with pytest.warns(tw.TilewrightWarning, match="^1 operator has no .* falls back"):
        tw.compile(foreign(), cache=False)
