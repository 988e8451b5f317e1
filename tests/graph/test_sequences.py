"""Models with sequences of known length run natively, and agree with ONNX's reference."""

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from tilewright.base.errors import TilewrightError
from tilewright.runtime.model import HostFallbackStep

RNG = np.random.default_rng(5)
MODELS = {
    "at": "s = SequenceConstruct(a, b) \n y = SequenceAt(s, one)",
    "at_the_end": "s = SequenceConstruct(a, b, a) \n y = SequenceAt(s, minus)",
    "insert": """e = SequenceEmpty() \n s = SequenceInsert(e, a) \n t = SequenceInsert(s, b, minus)
                 y = ConcatFromSequence<axis=0>(t)""",
    "erase": """s = SequenceConstruct(a, b, a) \n t = SequenceErase(s) \n u = SequenceErase(t, zero)
                y = ConcatFromSequence<axis=1>(u)""",
    "stack": "s = SequenceConstruct(a, b) \n y = ConcatFromSequence<axis=-1, new_axis=1>(s)",
    "length": "s = SplitToSequence<axis=0>(a, sizes) \n y = SequenceLength(s)",
    "split": "s = SplitToSequence<axis=-1>(a, sizes) \n y = SequenceAt(s, one)",
    "chunks": "s = SplitToSequence<axis=1>(a, two) \n y = SequenceAt(s, one)",
    "thin": "s = SplitToSequence<axis=1, keepdims=0>(a) \n y = ConcatFromSequence<axis=0>(s)",
    "copy": "s = SequenceConstruct(b) \n t = Identity(s) \n y = SequenceAt(t, zero)",
    "inside": """s = SequenceConstruct(a, b) \n y = If(flag) <
                 then_branch = t () => (float[3, 3] p) { p = SequenceAt(s, zero) },
                 else_branch = e () => (float[3, 3] q) { q = SequenceAt(s, one) }>""",
}


def build(text):
    kind = "int64" if "SequenceLength" in text else "float"
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[3, 3] a, float[3, 3] b, bool flag) => ({kind}[] y)
        <int64 zero = {{0}}, int64 one = {{1}}, int64 two = {{2}}, int64 minus = {{-1}},
         int64[2] sizes = {{2, 1}}>
        {{ {text.replace(chr(92) + "n", chr(10))} }}"""
    )


@pytest.mark.parametrize("name", MODELS)
def test_known_sequences_run_natively(name):
    model = build(MODELS[name])
    feeds = {n: RNG.normal(size=(3, 3)).astype(np.float32) for n in "ab"} | {
        "flag": np.array(True)
    }
    exe = tw.compile(model, threads=1, cache=False)
    (want,) = ReferenceEvaluator(model).run(None, feeds)
    np.testing.assert_array_equal(exe(feeds), want)
    if name != "inside":
        assert not [s for s in exe.model.steps if isinstance(s, HostFallbackStep)]


@pytest.mark.filterwarnings("ignore")
def test_a_position_beyond_the_end_is_an_error():
    with pytest.raises(TilewrightError):
        exe = tw.compile(build("s = SequenceConstruct(a, b) \n y = SequenceAt(s, two)"))
        exe(np.zeros((3, 3), np.float32), np.zeros((3, 3), np.float32), np.array(True))
