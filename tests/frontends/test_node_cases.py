"""A stratum of ONNX's own node tests through the importer and the graph interpreter."""

import numpy as np
import pytest

from tests.conformance import node_cases
from tilewright.frontends.onnx import conformance, load
from tilewright.frontends.onnx.conformance import cases
from tilewright.frontends.onnx.reference import OnnxFallback
from tilewright.graph.interp import evaluate
from tilewright.graph.verify import verify
from tilewright.testing.comparing import compare

# What is expected here rounds every step of Softmax to float16; we compute it in float32.
KNOWN = "test_attention_4d_causal_fp16"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_every_fifth_node_case():
    node_cases.keep()
    fallback, wrong = OnnxFallback(), []
    for case in cases("node")[::5]:
        if case.name.startswith(KNOWN):
            continue
        graph = load(case.model)
        verify(graph)
        for inputs, outputs in case.data:
            feeds = {
                v.name: a if isinstance(a, list | dict) or a is None else np.asarray(a)
                for v, a in zip(graph.inputs, inputs, strict=False)
            }
            found = evaluate(graph, feeds, fallback=fallback)
            try:
                if not case.random:
                    compare(
                        [found[v.name] for v in graph.outputs],
                        outputs,
                        case.rtol,
                        case.atol,
                    )
            except AssertionError as error:
                wrong.append(f"{case.name}: {' '.join(str(error).split())[:200]}")
    assert not wrong, "\n".join(wrong)


def test_what_is_kept_is_made_once_and_is_what_was_made(tmp_path):
    made = []

    def make():
        made.append([{"name": "a", "data": np.arange(3)}])
        return made[-1]

    first, second = (conformance._kept(tmp_path, make) for _ in range(2))
    assert len(made) == 1
    assert first[0]["name"] == second[0]["name"] == "a"
    assert second[0]["data"].tolist() == [0, 1, 2]
