"""Tokens per second of a decoder with a key-value cache, against peers on the same model.

    python -m benchmarks.decoder [--size small|medium|half] [--tokens N] [--threads N]
    python -m benchmarks.decoder --size half --weights int4 [--group 32] [--level 4]
    python -m benchmarks.decoder --size half --weights int4 --peers onnxruntime,openvino
    python -m benchmarks.decoder --write decoder.onnx    # to rewrite it, by a quantizer say
    python -m benchmarks.decoder --model rewritten.onnx

One token after another, each engine in turns on its own caches, with the tokens of a fixed random
sequence; the logits are compared at every step. ONNX Runtime has past and present in one buffer by
its IO binding, Tilewright by `aliases`, and OpenVINO as the state of a request. The same model
without them, which copies the caches, is timed too. On one thread, the time is the thread's, in
which other processes do not count; OpenVINO computes in threads of its own, so beside it the time
is the clock's. Bytes per token are those that have to be read: weights, and the keys and values of
the cache once; next to them the rate of a copy (bytes read and written) in the same process.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx

import tilewright as tw
from benchmarks.decoder_model import Arrays, Decoder, build
from benchmarks.harness import chosen, threads_option

SIZES = {
    "small": Decoder(8192, 512, 4, 8, 2, 64, 1408, 1024),
    "medium": Decoder(32000, 1024, 8, 16, 4, 64, 2816, 2048),
    "half": Decoder(32000, 1280, 24, 20, 4, 64, 3456, 512),  # 0.5 billion weights
}
# Of logits of unit variance, after all layers: by the accuracy_level of their products.
TOLERANCE = {0: 2e-3, 4: 0.2}

Step = Callable[[Any, Any], Any]  # ids and the place of the token: the logits


def ours(
    model: onnx.ModelProto, d: Decoder, threads: int, in_place: bool = True
) -> Step:
    """The compiled model; the caches it returns are inputs of the next step.

    in_place: the caches are updated in place, and only new keys and values are written.
    """
    aliases = {f"{name}_out": name for name in d.caches} if in_place else {}
    exe: Any = tw.compile(model, threads=threads, cache=False, aliases=aliases)
    caches = d.empty()

    def step(ids: Any, last: Any) -> Any:
        logits, *kept = exe(ids=ids, last_key=last, **caches)
        caches.update(zip(d.caches, kept, strict=True))
        return logits

    return step


def onnx_runtime(model: onnx.ModelProto, d: Decoder, threads: int) -> Step:
    """A session that updates its caches in place."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    caches = {k: ort.OrtValue.ortvalue_from_numpy(a) for k, a in d.empty().items()}
    binding = session.io_binding()
    for name, value in caches.items():
        binding.bind_ortvalue_input(name, value)
        binding.bind_ortvalue_output(f"{name}_out", value)
    binding.bind_output("logits")

    def step(ids: Any, last: Any) -> Any:
        binding.bind_cpu_input("ids", ids)
        binding.bind_cpu_input("last_key", last)
        session.run_with_iobinding(binding)
        return binding.get_outputs()[-1].numpy()

    return step


def openvino(model: onnx.ModelProto, d: Decoder, threads: int) -> Step:
    """A request whose caches are its state, as OpenVINO's own exporters of decoders make it."""
    import openvino as ov
    from openvino._offline_transformations import apply_make_stateful_transformation

    core = ov.Core()
    read = core.read_model(model.SerializeToString())
    apply_make_stateful_transformation(read, {name: f"{name}_out" for name in d.caches})
    settings: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads}
    settings["PERFORMANCE_HINT"] = "LATENCY"
    if d.level == 0:  # By default activations are bfloat16, and bytes in products.
        settings["INFERENCE_PRECISION_HINT"] = "f32"
        settings["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = 0
    request = core.compile_model(read, "CPU", settings).create_infer_request()

    def step(ids: Any, last: Any) -> Any:
        return request.infer({"ids": ids, "last_key": last})["logits"]

    return step


PEERS: dict[str, tuple[str, Callable[[onnx.ModelProto, Decoder, int], Step]]] = {
    "onnxruntime": ("ONNX Runtime", onnx_runtime),
    "openvino": ("OpenVINO", openvino),
}


def copy_rate(count: int = 1 << 24) -> float:
    """Bytes per second of a copy, read and written, of arrays that no cache keeps."""
    source = np.ones(count, np.float32)
    target = np.empty_like(source)
    taken = []
    for _ in range(7):
        start = time.thread_time()
        target[:] = source
        taken.append(time.thread_time() - start)
    return 2 * source.nbytes / statistics.median(taken)


def traffic(d: Decoder, weights: Arrays) -> int:
    """Bytes that a token has to read."""
    table = weights["table"].nbytes
    caches = sum(a.nbytes for a in d.empty().values())
    return sum(a.nbytes for a in weights.values()) - table + caches


def compare(
    engines: dict[str, Step],
    d: Decoder,
    tokens: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """The median seconds of a token by engine.

    clock: the thread's processor time, for one thread, excludes other work on the machine. Raises
    AssertionError if logits differ or are not finite.
    """
    rng = np.random.default_rng(3)
    taken: dict[str, list[float]] = {name: [] for name in engines}
    for place in range(tokens):
        ids = rng.integers(0, d.vocabulary, (d.batch, 1))
        last = np.full(d.batch, place, np.int32)
        found = []
        for name, step in engines.items():
            start = clock()
            logits = step(ids, last)
            taken[name].append(clock() - start)
            found.append(np.array(logits))
        assert np.isfinite(found[0]).all(), f"token {place}"
        for other in found[1:]:
            tolerance = TOLERANCE[d.level]
            np.testing.assert_allclose(found[0], other, rtol=tolerance, atol=tolerance)
    return {name: statistics.median(times[2:]) for name, times in taken.items()}


@click.command()
@click.option("--size", type=click.Choice([*SIZES]), default="small", show_default=True)
@click.option(
    "--tokens", default=48, show_default=True, help="Tokens after two warm-up tokens."
)
@threads_option()
@click.option(
    "--write", type=click.Path(path_type=Path), help="Write the model, and end."
)
@click.option("--model", type=click.Path(path_type=Path, exists=True))
@click.option(
    "--weights", "kind", type=click.Choice(["float32", "int4"]), default="float32"
)
@click.option("--group", default=32, show_default=True, help="With int4.")
@click.option(
    "--level",
    type=click.Choice(TOLERANCE),
    default=0,
    show_default=True,
    help="With int4: 4 allows activations in bytes.",
)
@click.option(
    "--peers",
    default="onnxruntime",
    show_default=True,
    help=f"Of {', '.join(PEERS)}, separated by commas.",
)
def main(
    size: str,
    tokens: int,
    threads: int,
    write: Path | None,
    model: Path | None,
    kind: str,
    group: int,
    level: int,
    peers: str,
) -> None:
    """Tokens per second of each, and the ratio of ours to the others'."""
    d = SIZES[size]
    if kind == "int4":
        d = replace(d, group=group, level=level)
    weights = d.weights()
    made = build(d, weights) if model is None else onnx.load(model)
    if write is not None:
        onnx.save(made, write)
        return
    if tokens + 2 > d.positions:
        raise click.BadParameter(
            f"the cache has {d.positions} positions", param_hint="--tokens"
        )
    engines = {
        "Tilewright": ours(made, d, threads),
        "with copies": ours(made, d, threads, in_place=False),
    }
    for peer in chosen(peers, [*PEERS]):
        name, session = PEERS[peer]
        engines[name] = session(made, d, threads)
    alone = threads == 1 and "OpenVINO" not in engines
    clock = time.thread_time if alone else time.perf_counter
    found = compare(engines, d, tokens + 2, clock)
    read, rate = traffic(d, weights), copy_rate()
    for name, seconds in found.items():
        share = read / seconds / rate
        print(
            f"{name:<14}{1 / seconds:8.1f} tokens/s   {share:5.2f} of the copy's rate"
        )
    mine = found.pop("Tilewright")
    ratios = ", ".join(f"{name} {other / mine:.2f}" for name, other in found.items())
    print(f"speed relative to others: {ratios}")
    print(f"{read / 1e6:.0f} MB per token, {threads} threads")


if __name__ == "__main__":
    main()
