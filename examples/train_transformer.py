"""Train a small transformer to reverse sequences of digits.

python examples/train_transformer.py [steps] [curve.svg]

Two layers of attention with residuals and layer normalization. Positions are learned; each
sequence is new, so that what is measured was never trained on.
"""

import sys

import numpy as np
import onnx.parser
from onnx import numpy_helper

import tilewright as tw
from examples.train_lenet import curve

BATCH, LENGTH, DIGITS, WIDTH, HEADS, LAYERS = 64, 12, 10, 64, 4, 2
LAYER = """
  n{i} = LayerNormalization (x{i}, one{i}, zero{i})
  q{i} = MatMul (n{i}, wq{i})
  k{i} = MatMul (n{i}, wk{i})
  v{i} = MatMul (n{i}, wv{i})
  a{i} = Attention <q_num_heads = {heads}, kv_num_heads = {heads}> (q{i}, k{i}, v{i})
  p{i} = MatMul (a{i}, wo{i})
  s{i} = Add (x{i}, p{i})
  m{i} = LayerNormalization (s{i}, more{i}, none{i})
  u{i} = MatMul (m{i}, wu{i})
  g{i} = Gelu (u{i})
  d{i} = MatMul (g{i}, wd{i})
  x{next} = Add (s{i}, d{i})
"""


def transformer(rng):
    """The model with random weights: int64 [batch, length] -> scores [batch, length, digits]."""
    layers = "".join(LAYER.format(i=i, next=i + 1, heads=HEADS) for i in range(LAYERS))
    model = onnx.parser.parse_model(
        f"""<ir_version: 11, opset_import: ["" : 23]>
        transformer (int64[{BATCH}, {LENGTH}] digits)
          => (float[{BATCH}, {LENGTH}, {DIGITS}] scores) {{
          e = Gather (embedding, digits)
          x0 = Add (e, positions)
          {layers}
          last = LayerNormalization (x{LAYERS}, one, zero)
          scores = MatMul (last, classes)
        }}"""
    )
    weights = {
        "embedding": rng.standard_normal((DIGITS, WIDTH)) * 0.5,
        "positions": rng.standard_normal((LENGTH, WIDTH)) * 0.5,
        "one": np.ones(WIDTH),
        "zero": np.zeros(WIDTH),
        "classes": matrix(rng, WIDTH, DIGITS),
    }
    for i in range(LAYERS):
        weights |= {f"{n}{i}": np.ones(WIDTH) for n in ("one", "more")}
        weights |= {f"{n}{i}": np.zeros(WIDTH) for n in ("zero", "none")}
        weights |= {f"w{n}{i}": matrix(rng, WIDTH, WIDTH) for n in "qkvo"}
        weights[f"wu{i}"] = matrix(rng, WIDTH, 4 * WIDTH)
        weights[f"wd{i}"] = matrix(rng, 4 * WIDTH, WIDTH)
    for name, array in weights.items():
        tensor = numpy_helper.from_array(array.astype(np.float32), name)
        model.graph.initializer.append(tensor)
    return model


def matrix(rng, rows, columns):
    """Random weights that keep the variance."""
    return rng.standard_normal((rows, columns)) / np.sqrt(rows)


def batch(rng):
    """Random sequences, and each in reverse."""
    digits = rng.integers(0, DIGITS, (BATCH, LENGTH))
    return digits, digits[:, ::-1].copy()


def train(steps=400, seed=0):
    """Losses of all steps, and the share of digits that are right in new sequences."""
    rng = np.random.default_rng(seed)
    step = tw.compile_training_step(
        transformer(rng), "cross_entropy", tw.optim.AdamW(0.003)
    )
    losses = []
    for n in range(steps):
        step.learning_rate = 0.003 * min(1, (n + 1) / 40)
        losses.append(step.step(*batch(rng)))
    digits, wanted = batch(rng)
    scores = tw.compile(step.model())(digits)
    return losses, float(np.mean(np.argmax(scores, axis=-1) == wanted))


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    losses, right = train(steps)
    print(f"loss {losses[0]:.3f} -> {np.mean(losses[-20:]):.4f} in {len(losses)} steps")
    print(f"digits right in new sequences: {right:.1%}")
    if len(sys.argv) > 2:
        curve(losses, sys.argv[2])


if __name__ == "__main__":
    main()
