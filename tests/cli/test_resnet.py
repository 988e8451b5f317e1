"""The demo's network is ResNet-50, and its weights keep the signal's scale."""

import numpy as np
import onnx
import pytest

from tilewright.cli import resnet


@pytest.fixture(scope="module")
def model():
    return resnet.build()


@pytest.mark.slow
def test_it_is_resnet50(model):
    proto = onnx.ModelProto.FromString(model)
    onnx.checker.check_model(proto, full_check=True)
    counts = {}
    for node in proto.graph.node:
        counts[node.op_type] = counts.get(node.op_type, 0) + 1
    assert counts["Conv"] == counts["BatchNormalization"] == 53
    assert counts["Add"] == 16
    weights = sum(int(np.prod(t.dims)) for t in proto.graph.initializer)
    # Published: 25,557,032 trained parameters; the running statistics come on top.
    assert weights == 25_557_032 + 2 * 26_560


def test_it_is_the_same_every_time(monkeypatch):
    monkeypatch.setattr(resnet, "STAGES", ((1, 64), (1, 128)))
    first, again = (resnet.build() for _ in range(2))
    assert first == again != resnet.build(seed=1)


@pytest.mark.slow
def test_the_signal_neither_fades_nor_explodes(model):
    ort = pytest.importorskip("onnxruntime")
    session = ort.InferenceSession(model)
    logits = session.run(None, {"image": resnet.image()})[0]
    assert 0.1 < logits.std() < 10
