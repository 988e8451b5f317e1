"""Models whose shapes or steps depend on data, against ONNX Runtime on the same file.

    python -m benchmarks.data_dependent [--cases 'one_stage,greedy'] [--threads N] [--rounds N]

What detectors do behind their convolutions, and decoders that stop by themselves, with random
weights. Each is one call; a step that would fall back to the host is an error. Calls take turns in
one process, and the results are compared first.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
from onnx import numpy_helper, parser

from benchmarks.harness import names_option, rounds_option, threads_option
from tilewright.cli import engines

Array = np.ndarray[Any, Any]
HEADER = '<ir_version: 9, opset_import: ["": 18]>'
PAUSE = 0.05  # seconds before a turn: the workers of the engine before spin for a while
TOLERANCE = 1e-3  # of results of some hundred steps in float32


@dataclass(frozen=True)
class Case:
    """A model in ONNX's text, arrays that are its weights, and one call's inputs."""

    text: str
    weights: Mapping[str, Array]
    inputs: Mapping[str, Array]

    def model(self) -> onnx.ModelProto:
        """The model with its weights."""
        made = parser.parse_model(HEADER + self.text)
        made.graph.initializer.extend(
            numpy_helper.from_array(np.asarray(a), name)
            for name, a in self.weights.items()
        )
        return made


def _normal(rng: np.random.Generator, *shape: int, gain: float = 1.0) -> Array:
    """Weights whose products with unit values have the standard deviation `gain`."""
    fan = shape[-2] if len(shape) > 1 else 1
    return rng.standard_normal(shape).astype(np.float32) * (gain / math.sqrt(fan))


def _boxes(rng: np.random.Generator, count: int, side: float) -> Array:
    """Boxes in an image, float32 [count, 4]: two corners."""
    first = rng.uniform(0, 0.8 * side, (count, 2))
    last = first + rng.uniform(0.05 * side, 0.3 * side, (count, 2))
    return np.concatenate([first, last], 1).astype(np.float32)


def one_stage(rng: np.random.Generator) -> Case:
    """RetinaNet: classes above a threshold of all anchors, the best 1000, suppressed by class."""
    anchors, classes = 14400, 20
    text = f"""
    head (float[{anchors}, {classes}] logits, float[{anchors}, 4] boxes)
        => (float[n, 4] found, float[n] score, int64[n] label) {{
      raw = Sigmoid(logits)
      flat = Reshape(raw, all)
      good = Greater(flat, limit)
      places = NonZero(good)
      index = Squeeze(places, zero)
      some = Gather(flat, index)
      count = Shape(some)
      least = Min(count, most)
      score0, order = TopK(some, least)
      chosen = Gather(index, order)
      anchor = Div(chosen, classes)
      label0 = Mod(chosen, classes)
      box = Gather(boxes, anchor)
      apart = Cast<to = 1>(label0)
      shift = Mul(apart, far)
      column = Unsqueeze(shift, one)
      moved = Add(box, column)
      stack = Unsqueeze(moved, zero)
      each = Unsqueeze(score0, both)
      kept = NonMaxSuppression(stack, each, hundred, overlap)
      last = Gather<axis = 1>(kept, two)
      found = Gather(box, last)
      score = Gather(score0, last)
      label = Gather(label0, last)
    }}"""
    weights: dict[str, Any] = {
        "all": np.array([-1]),
        "limit": np.float32(0.5),
        "zero": np.array([0]),
        "one": np.array([1]),
        "both": np.array([0, 1]),
        "two": np.array(2),
        "most": np.array([1000]),
        "classes": np.array(classes),
        "far": np.float32(1000),
        "hundred": np.array([100]),
        "overlap": np.array([0.5], np.float32),
    }
    logits = rng.standard_normal((anchors, classes)).astype(np.float32) - 2
    return Case(text, weights, {"logits": logits, "boxes": _boxes(rng, anchors, 320)})


def two_stage(rng: np.random.Generator) -> Case:
    """Faster R-CNN: the best regions of a map, each brought to 7x7 and classified."""
    anchors, channels, side, classes = 4800, 256, 20, 21
    text = f"""
    head (float[1, {channels}, {side}, {side}] image, float[{anchors}] scores,
          float[{anchors}, 4] boxes) => (float[n, 4] found, float[n, {classes}] chance) {{
      best, order = TopK(scores, thousand)
      some = Gather(boxes, order)
      stack = Unsqueeze(some, zero)
      each = Unsqueeze(best, both)
      kept = NonMaxSuppression(stack, each, hundred, overlap)
      last = Gather<axis = 1>(kept, two)
      found = Gather(some, last)
      size = Shape(last)
      which = ConstantOfShape<value = int64[1] {{0}}>(size)
      region = RoiAlign<output_height = 7, output_width = 7, sampling_ratio = 2,
                        spatial_scale = 0.0625>(image, found, which)
      rows = Flatten(region)
      h0 = Gemm(rows, w0)
      h1 = Relu(h0)
      h2 = Gemm(h1, w1)
      chance = Softmax(h2)
    }}"""
    weights: dict[str, Any] = {
        "thousand": np.array([1000]),
        "zero": np.array([0]),
        "both": np.array([0, 1]),
        "two": np.array(2),
        "hundred": np.array([100]),
        "overlap": np.array([0.7], np.float32),
        "w0": _normal(rng, 49 * channels, 256),
        "w1": _normal(rng, 256, classes),
    }
    inputs = {
        "image": rng.standard_normal((1, channels, side, side)).astype(np.float32),
        "scores": rng.standard_normal(anchors).astype(np.float32),
        "boxes": _boxes(rng, anchors, 320),
    }
    return Case(text, weights, inputs)


def queries(rng: np.random.Generator) -> Case:
    """DETR: queries whose best class is above a threshold."""
    text = """
    head (float[100, 92] logits, float[100, 4] boxes)
        => (float[n, 4] found, float[n] score, int64[n] label) {
      chance = Softmax(logits)
      best0 = ReduceMax<keepdims = 0>(chance, one)
      label0 = ArgMax<axis = 1, keepdims = 0>(chance)
      good = Greater(best0, limit)
      score = Compress<axis = 0>(best0, good)
      label = Compress<axis = 0>(label0, good)
      found = Compress<axis = 0>(boxes, good)
    }"""
    weights: dict[str, Any] = {"one": np.array([1]), "limit": np.float32(0.1)}
    logits = rng.standard_normal((100, 92)).astype(np.float32)
    return Case(text, weights, {"logits": logits, "boxes": _boxes(rng, 100, 1)})


WIDTH, STATES, WORDS, STEPS = 256, 100, 2000, 48
LAYER = """
      x = Gather(table, token)
      key = MatMul(x, wk)
      value = MatMul(x, wv)
      keys1 = Concat<axis = 0>(keys, key)
      values1 = Concat<axis = 0>(values, value)
      q = MatMul(x, wq)
      kt = Transpose(keys1)
      s = MatMul(q, kt)
      p = Softmax(s)
      own = MatMul(p, values1)
      y = Add(x, own)
      q2 = MatMul(y, wc)
      s2 = MatMul(q2, sound)
      p2 = Softmax(s2)
      other = MatMul(p2, states)
      z = Add(y, other)
      wide = MatMul(z, w1)
      act = Relu(wide)
      narrow = MatMul(act, w2)
      out = Add(z, narrow)
      logits = MatMul(out, head)
      token1 = ArgMax<axis = 1, keepdims = 0>(logits)
      ended = Equal(token1, stop)
      last = Squeeze(ended)
      go = Not(last)
      word = Squeeze(token1)"""


def greedy(rng: np.random.Generator) -> Case:
    """Whisper: a token at a time, from keys that grow and the states of an encoder, to the end."""
    kept = f"float[m, {WIDTH}]"
    text = f"""
    decoder (float[{STATES}, {WIDTH}] states) => (int64[n] words) {{
      sound = Transpose(states)
      t, k, v, words = Loop<body = step (int64 i, bool c, int64[1] token, {kept} keys,
          {kept} values) => (bool go, int64[1] token1, {kept} keys1, {kept} values1, int64 word) {{
      {LAYER} }}> (trips, yes, first, none, none)
    }}"""
    square = {name: _normal(rng, WIDTH, WIDTH) for name in ("wk", "wv", "wq", "wc")}
    weights: dict[str, Any] = {
        **{name: w / 4 for name, w in square.items()},
        "w1": _normal(rng, WIDTH, 4 * WIDTH),
        "w2": _normal(rng, 4 * WIDTH, WIDTH),
        "head": _normal(rng, WIDTH, WORDS),
        "table": _normal(rng, 1, WORDS, WIDTH)[0],
        "trips": np.array(STEPS),
        "yes": np.array(True),
        "first": np.array([1]),
        "stop": np.array([-1]),  # no word: it ends by the number of steps
        "none": np.zeros((0, WIDTH), np.float32),
    }
    states = rng.standard_normal((STATES, WIDTH)).astype(np.float32)
    return Case(text, weights, {"states": states})


def beam(rng: np.random.Generator) -> Case:
    """A beam search: four states, the four best of all their next words, until a bound is met."""
    text = f"""
    search (float[1, {WIDTH}] state) => (
        float[4, 1] total, int64[n, 4] words, int64[n, 4] parents) {{
      wide = Expand(state, four)
      s, t, total, words, parents = Loop<body = step (int64 i, bool c, float[4, {WIDTH}] h,
          int64[4] token, float[4, 1] sum) => (bool go, float[4, {WIDTH}] h1, int64[4] word,
          float[4, 1] sum1, int64[4] spoken, int64[4] parent) {{
        x = Gather(table, token)
        a = MatMul(h, wh)
        b = MatMul(x, wx)
        ab = Add(a, b)
        new = Tanh(ab)
        logits = MatMul(new, head)
        chance = LogSoftmax(logits)
        all = Add(chance, sum)
        flat = Reshape(all, line)
        best, place = TopK(flat, number)
        parent = Div(place, size)
        word = Mod(place, size)
        spoken = Identity(word)
        h1 = Gather(new, parent)
        sum1 = Unsqueeze(best, one)
        top = ReduceMax<keepdims = 0>(best)
        go = Greater(top, bound)
      }}> (trips, yes, wide, first, start)
    }}"""
    weights: dict[str, Any] = {
        "four": np.array([4, WIDTH]),
        "wh": _normal(rng, WIDTH, WIDTH),
        "wx": _normal(rng, WIDTH, WIDTH),
        "head": _normal(rng, WIDTH, WORDS, gain=2.0),
        "table": _normal(rng, 1, WORDS, WIDTH)[0],
        "line": np.array([-1]),
        "number": np.array([4]),
        "size": np.array(WORDS),
        "one": np.array([1]),
        "bound": np.float32(-100),
        "trips": np.array(STEPS),
        "yes": np.array(True),
        "first": np.zeros(4, np.int64),
        "start": np.array([[0], [-1e9], [-1e9], [-1e9]], np.float32),
    }
    state = rng.standard_normal((1, WIDTH)).astype(np.float32)
    return Case(text, weights, {"state": state})


CASES: dict[str, Callable[[np.random.Generator], Case]] = {
    f.__name__: f for f in (one_stage, two_stage, queries, greedy, beam)
}


def agree(mine: Sequence[Array], theirs: Sequence[Array]) -> None:
    """Raises AssertionError if results differ in shape or by more than TOLERANCE."""
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE)


def times(
    case: Case, threads: int, rounds: int
) -> tuple[dict[str, float], list[tuple[int, ...]]]:
    """Median seconds of a call by engine, and the shapes of the results.

    Raises AssertionError if the results differ.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(case.model(), path)
        ours = partial(engines.tilewright, cache=False, fallback="error")
        made: dict[str, Callable[..., engines.Runner]]
        made = {"Tilewright": ours, "ONNX Runtime": engines.onnxruntime}
        runs = {name: make(path, threads) for name, make in made.items()}
        feeds = dict(case.inputs)
        found = {name: list(run(feeds)) for name, run in runs.items()}
        agree(*found.values())
        taken: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(rounds):
            for name, run in runs.items():
                time.sleep(PAUSE)
                run(feeds)  # its code and workers are awake again
                start = time.perf_counter()
                run(feeds)
                taken[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(each) for name, each in taken.items()}
    return medians, [a.shape for a in found["Tilewright"]]


@click.command()
@names_option("--cases", tuple(CASES), default="*")
@threads_option(2)
@rounds_option(15)
def main(cases: list[str], threads: int, rounds: int) -> None:
    """Milliseconds of a call of each, and how many times faster ours is."""
    print(f"{'':<12}{'ours, ms':>10}{'ONNX Runtime':>14}{'ratio':>7}  results")
    ratios = []
    for name in cases:
        case = CASES[name](np.random.default_rng(1))
        found, shapes = times(case, threads, rounds)
        mine, other = found.values()
        ratios.append(other / mine)
        row = f"{name:<12}{1e3 * mine:>10.3f}{1e3 * other:>14.3f}{other / mine:>7.2f}"
        print(f"{row}  {shapes}", flush=True)
    middle = statistics.geometric_mean(ratios)
    print(f"geometric mean {middle:.2f}, least {min(ratios):.2f}, {threads} threads")


if __name__ == "__main__":
    main()
