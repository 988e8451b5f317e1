"""Networks in 8 bits against their float32, ours and other engines'.

    python -m benchmarks.int8 [resnet50 minilm] [--rounds 15]
    python -m benchmarks.int8 resnet50 --inputs 1000 --only int8    # agreement on many

Every engine quantizes the same float model by the same data. Rounds are interleaved and on one
thread, in that thread's own processor time, so that other work on the machine weighs on all alike.
Agreement is with the float32 model in ONNX Runtime, on inputs that no scale comes from.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

import tilewright as tw
from benchmarks import models
from benchmarks.harness import rounds_option
from benchmarks.turns import by_turns, clock_of, stopwatch
from tilewright.base.text import columns
from tilewright.frontends.onnx.save import save_onnx
from tilewright.graph.quantize.metrics import compare
from tilewright.runtime.machine import processor_name

Array = np.ndarray[Any, Any]
Feeds = Mapping[str, Array]
Run = Callable[[Feeds], Mapping[str, Array]]
CALIBRATION = 8  # samples that scales come from
_WAVES = 6  # of a structured image


@dataclass(eq=False)
class Engine:
    """A way to run a network. seconds: of each round."""

    name: str
    run: Run
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Seconds of the middle round."""
        return statistics.median(self.seconds)


@dataclass(frozen=True)
class Row:
    """speedup: ours in float32 over this, the median of the ratios of all rounds."""

    network: str
    engine: str
    milliseconds: float
    speedup: float
    top1: float | None
    cosine: float


def structured(shape: Sequence[int], seed: int) -> Array:
    """Images [N, C, H, W] with structure: waves of few cycles, an edge and a disk, about normal."""
    rng = np.random.default_rng([4711, seed])
    y, x = np.meshgrid(*(np.linspace(-1, 1, n) for n in shape[2:]), indexing="ij")
    image = np.zeros(shape, np.float64)
    for _ in range(_WAVES):
        fx, fy, phase = rng.normal(0, 6, 2).tolist() + [rng.uniform(0, 6.3)]
        color = rng.standard_normal((*shape[:2], 1, 1))
        image += color * np.sin(fx * x + fy * y + phase)
    angle, offset = rng.uniform(0, 6.3), rng.uniform(-0.5, 0.5)
    edge = (np.cos(angle) * x + np.sin(angle) * y) > offset
    center = rng.uniform(-0.6, 0.6, 2)
    disk = (x - center[0]) ** 2 + (y - center[1]) ** 2 < rng.uniform(0.05, 0.4)
    for mask in (edge, disk):
        image += 2 * rng.standard_normal((*shape[:2], 1, 1)) * mask
    image += 0.1 * rng.standard_normal(shape)
    found: np.ndarray[Any, Any] = (image - image.mean()) / image.std()
    return found.astype(np.float32)


def inputs(name: str, seed: int) -> Feeds:
    """Structured images, or the network's own inputs."""
    given = models.inputs(name, seed)
    return {
        k: structured(a.shape, seed) if a.ndim == 4 and a.dtype == np.float32 else a
        for k, a in given.items()
    }


def ours(source: Any, names: Sequence[str]) -> Run:
    """Compiled for one thread."""
    exe = tw.compile(source, threads=1)

    def run(feeds: Feeds) -> Mapping[str, Array]:
        found = exe(dict(feeds))
        outputs = found if isinstance(found, tuple) else (found,)
        return dict(zip(names, outputs, strict=True))

    return run


def onnxruntime(path: Path, names: Sequence[str]) -> Run:
    """ONNX Runtime with one thread."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    return lambda feeds: dict(zip(names, session.run(names, dict(feeds)), strict=True))


def openvino(model: Any, names: Sequence[str]) -> Run | None:
    """OpenVINO with one thread, on its own file or model; None if it is not installed.

    Floats stay float32: on some processors it would round them to bfloat16 by default.
    """
    try:
        import openvino as ov
    except ImportError:
        return None
    options = {
        "INFERENCE_NUM_THREADS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
    }
    model = ov.Core().compile_model(model, "CPU", options)

    def run(feeds: Feeds) -> Mapping[str, Array]:
        found = model(dict(feeds))
        return {name: found[n] for n, name in enumerate(names)}

    return run


def nncf(source: Path, samples: Sequence[Feeds], names: Sequence[str]) -> Run | None:
    """OpenVINO's own quantizer and OpenVINO; None if one is not installed."""
    try:
        import nncf as quantizer
        import openvino as ov
    except ImportError:
        return None
    integers = any(a.dtype.kind == "i" for a in samples[0].values())
    made = quantizer.quantize(
        ov.Core().read_model(source),
        quantizer.Dataset([dict(s) for s in samples]),
        model_type=quantizer.ModelType.TRANSFORMER if integers else None,
        subset_size=len(samples),
    )
    return openvino(made, names)


def quantize_static(source: Path, samples: Sequence[Feeds], path: Path) -> None:
    """ONNX Runtime's own quantizer: QDQ, weights per channel, its defaults otherwise.

    Softmax is excluded, as its outputs would have steps of 1/256: too coarse for a thousand
    classes.
    """
    from onnxruntime import quantization
    from onnxruntime.quantization.registry import QDQRegistry

    class Samples(quantization.CalibrationDataReader):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            self.left = iter(samples)

        def get_next(self) -> Any:
            found = next(self.left, None)
            return None if found is None else dict(found)

    plain = path.with_suffix(".plain.onnx")
    quantization.quant_pre_process(source, plain, skip_symbolic_shape=True)
    kinds = [kind for kind in QDQRegistry if kind != "Softmax"]
    quantization.quantize_static(
        plain, path, Samples(), per_channel=True, op_types_to_quantize=kinds
    )


def engines(name: str, folder: Path, recipe: Mapping[str, Any]) -> list[Engine]:
    """All engines of the network: ours in float32 first, ONNX Runtime in float32 second."""
    source = models.build(name, models.default_directory())
    samples = [inputs(name, seed) for seed in range(1, CALIBRATION + 1)]
    made = tw.quantize(str(source), samples, threads=1, **recipe)
    click.echo(f"{name}: {made.report.agreement}", err=True)
    names = [v.name for v in made.graph.outputs]
    mine, theirs = folder / f"{name}.ours.onnx", folder / f"{name}.theirs.onnx"
    save_onnx(made.graph, mine)
    quantize_static(source, samples, theirs)
    found: list[tuple[str, Run | None]] = [
        ("tilewright float32", ours(str(source), names)),
        ("onnxruntime float32", onnxruntime(source, names)),
        ("tilewright int8", ours(made.graph, names)),
        ("tilewright int8, their model", ours(str(theirs), names)),
        ("onnxruntime int8", onnxruntime(theirs, names)),
        ("onnxruntime int8, our model", onnxruntime(mine, names)),
        ("openvino float32", openvino(source, names)),
        ("openvino int8", nncf(source, samples, names)),
        ("openvino int8, our model", openvino(mine, names)),
        ("openvino int8, their model", openvino(theirs, names)),
    ]
    return [Engine(n, run) for n, run in found if run is not None]


def measure(name: str, all_: Sequence[Engine], rounds: int, count: int) -> list[Row]:
    """Times in interleaved rounds, and agreement on `count` inputs.

    all_: the first is the reference for speed, the second for outputs.
    """
    feeds = inputs(name, 0)
    clock = clock_of(1)
    timed = {e.name: stopwatch(partial(e.run, feeds), clock) for e in all_}
    taken = by_turns(timed, rounds + 1)
    for engine in all_:
        engine.seconds += taken[engine.name][1:]  # the first is to warm up
    tried = [inputs(name, 1000 + n) for n in range(count)]
    reference = [_scores(all_[1].run(f)) for f in tried]
    base = all_[0].seconds
    rows = []
    for engine in all_:
        found_of = map(engine.run, tried)
        outputs = reference if engine is all_[1] else map(_scores, found_of)
        found = compare(zip(reference, outputs, strict=True))
        ratios = [a / b for a, b in zip(base, engine.seconds, strict=True)]
        speedup = statistics.median(ratios)
        ms = 1000 * engine.median
        rows.append(Row(name, engine.name, ms, speedup, found.top1, found.cosine))
    return rows


def _scores(outputs: Mapping[str, Array]) -> dict[str, Array]:
    """Outputs [batch, classes, 1, 1] without the axes of an image of one point."""
    return {
        k: a.reshape(a.shape[:2])
        if a.ndim > 2 and a.size == a.shape[0] * a.shape[1]
        else a
        for k, a in outputs.items()
    }


def show(rows: Sequence[Row]) -> str:
    """A table."""
    heading = ("network", "engine", "ms", "over ours f32", "top-1", "cosine")
    lines = [
        (
            r.network,
            r.engine,
            f"{r.milliseconds:.2f}",
            f"{r.speedup:.2f}",
            "" if r.top1 is None else f"{r.top1:.1%}",
            f"{r.cosine:.6f}",
        )
        for r in rows
    ]
    return columns([heading, *lines], "<<>>>>")


@click.command(epilog="Example: python -m benchmarks.int8 resnet50 --rounds 15")
@click.argument("networks", nargs=-1, type=click.Choice(list(models.RECIPES)))
@rounds_option(7)
@click.option(
    "--inputs", "count", default=16, show_default=True, type=click.IntRange(1)
)
@click.option("--only", default="", help="Engines whose names end so, and float32.")
@click.option("--recipe", default="{}", help="Options of tw.quantize, as JSON.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per row.")
def main(
    networks: tuple[str, ...],
    rounds: int,
    count: int,
    only: str,
    recipe: str,
    as_json: bool,
) -> None:
    """Time networks in 8 bits and float32, and compare their outputs."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in networks or ("resnet50", "minilm"):
            first, second, *rest = engines(name, Path(folder), json.loads(recipe))
            found = [first, second, *(e for e in rest if e.name.endswith(only))]
            rows += measure(name, found, rounds, count)
    if as_json:
        for row in rows:
            click.echo(json.dumps(asdict(row)))
        return
    click.echo(show(rows))
    click.echo(
        f"{processor_name()}, 1 thread, processor time of it, medians of {rounds} "
        f"interleaved rounds; agreement on {count} inputs"
    )


if __name__ == "__main__":
    sys.exit(main())
