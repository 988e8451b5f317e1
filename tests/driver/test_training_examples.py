"""The training examples: their networks learn; slow, as tests/driver/test_training.py is not."""

import numpy as np
import pytest

import tilewright as tw
from examples import train_lenet, train_transformer


@pytest.mark.slow
def test_lenet_learns_a_batch_by_heart():
    rng = np.random.default_rng(0)
    images = rng.standard_normal((8, 1, 28, 28)).astype(np.float32)
    labels = np.arange(8)
    step = tw.compile_training_step(
        train_lenet.lenet(rng), "cross_entropy", tw.optim.Adam(0.002), dims={"N": 8}
    )
    losses = [step.step(images, labels) for _ in range(40)]
    assert losses[0] > 1.5 and losses[-1] < 0.1
    assert train_lenet.accuracy(step.model(), images, labels) == 1


@pytest.mark.slow
@pytest.mark.parametrize("precision", [None, "bfloat16"])
def test_lenet_on_digits(tmp_path, precision):
    pytest.importorskip("sklearn")
    losses, accuracy = train_lenet.train(precision=precision)
    assert accuracy >= 0.98
    train_lenet.curve(losses, tmp_path / "curve.svg")
    assert (tmp_path / "curve.svg").read_text().startswith("<svg")


@pytest.mark.slow
def test_a_transformer_learns_to_reverse():
    _, right = train_transformer.train()
    assert right >= 0.99
