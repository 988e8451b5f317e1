"""Train LeNet-5 on scikit-learn's handwritten digits, scaled to 28x28.

python examples/train_lenet.py [epochs] [curve.svg]

Prints the loss and the accuracy on 360 digits that it was not trained on; needs scikit-learn.
"""

import sys

import numpy as np
import onnx.parser
from onnx import numpy_helper

import tilewright as tw

BATCH = 64
NETWORK = """
<ir_version: 10, opset_import: ["" : 21]>
lenet (float[N, 1, 28, 28] image) => (float[N, 10] scores) {
  c1 = Conv <pads = [2, 2, 2, 2]> (image, w1, b1)
  r1 = Relu (c1)
  p1 = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r1)
  c2 = Conv (p1, w2, b2)
  r2 = Relu (c2)
  p2 = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r2)
  flat = Flatten (p2)
  f3 = Gemm <transB = 1> (flat, w3, b3)
  r3 = Relu (f3)
  f4 = Gemm <transB = 1> (r3, w4, b4)
  r4 = Relu (f4)
  scores = Gemm <transB = 1> (r4, w5, b5)
}
"""
WEIGHTS = ((6, 1, 5, 5), (16, 6, 5, 5), (120, 400), (84, 120), (10, 84))


def lenet(rng):
    """The model with random weights."""
    model = onnx.parser.parse_model(NETWORK)
    for n, shape in enumerate(WEIGHTS, start=1):
        deviation = np.sqrt(2 / np.prod(shape[1:]))
        w = (rng.standard_normal(shape) * deviation).astype(np.float32)
        b = np.zeros(shape[0], np.float32)
        for name, array in ((f"w{n}", w), (f"b{n}", b)):
            model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def digits(rng):
    """1,797 digits of 8x8 pixels as images [n, 1, 28, 28], in random order, and their labels."""
    from sklearn.datasets import load_digits

    found = load_digits()
    large = np.kron(found.images / 16, np.ones((1, 3, 3)))  # 24x24
    images = np.pad(large, ((0, 0), (2, 2), (2, 2)))[:, None].astype(np.float32)
    order = rng.permutation(len(images))
    return images[order], found.target[order].astype(np.int64)


def accuracy(model, images, labels):
    """The share of the images whose largest score is that of their label."""
    scores = tw.compile(model, dims={"N": len(images)})(images)
    return float(np.mean(np.argmax(scores, axis=1) == labels))


def train(epochs=15, seed=0, precision=None):
    """Losses of all steps, and the accuracy on the last 360 digits.

    precision: "bfloat16" or "float16" for products of that type.
    """
    rng = np.random.default_rng(seed)
    images, labels = digits(rng)
    held_out = len(images) - 360
    step = tw.compile_training_step(
        lenet(rng),
        "cross_entropy",
        tw.optim.Adam(0.002),
        dims={"N": BATCH},
        precision=precision,
    )
    losses = []
    for _ in range(epochs):
        order = rng.permutation(held_out)
        for start in range(0, held_out - BATCH + 1, BATCH):
            chosen = order[start : start + BATCH]
            losses.append(step.step(images[chosen], labels[chosen]))
    found = accuracy(step.model(), images[held_out:], labels[held_out:])
    return losses, found


def curve(losses, path, width=640, height=240):
    """Write a plot of the losses, on a logarithmic scale, as an SVG image."""
    y = np.log10(np.maximum(losses, 1e-6))
    low, high = np.floor(y.min()), np.ceil(y.max())
    xs = np.linspace(50, width - 10, len(y))
    ys = height - 30 - (y - low) / (high - low) * (height - 50)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(xs, ys, strict=True))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for tick in range(int(low), int(high) + 1):
        at = height - 30 - (tick - low) / (high - low) * (height - 50)
        line = f'x1="50" x2="{width - 10}" y1="{at:.1f}" y2="{at:.1f}"'
        parts.append(f'<line {line} stroke="#ddd"/>')
        parts.append(
            f'<text x="44" y="{at + 4:.1f}" text-anchor="end">{10.0**tick:g}</text>'
        )
    parts.append(f'<polyline fill="none" stroke="#1f77b4" points="{points}"/>')
    parts.append(
        f'<text x="50" y="{height - 10}">loss over {len(y)} steps</text></svg>\n'
    )
    with open(path, "w") as file:
        file.write("\n".join(parts))


def main() -> None:
    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    losses, found = train(epochs)
    print(f"loss {losses[0]:.3f} -> {np.mean(losses[-20:]):.4f} in {len(losses)} steps")
    print(f"accuracy on 360 digits held out: {found:.1%}")
    if len(sys.argv) > 2:
        curve(losses, sys.argv[2])


if __name__ == "__main__":
    main()
