"""Tuning against TVM's MetaSchedule: the same definitions, trials and thread, in the same run.

python -m benchmarks.metaschedule [NAME ...] [--trials N] [--seed N] [--processors N] [--realtime]

Operators in te, whose definitions are the same lines in both packages. Each is its own process
on one or more processors: this package tunes it, then MetaSchedule does, with as many trials and
its default cost model; the programs have one thread. The results of both are compared with NumPy's,
and both are timed in alternating rounds by the processor's time. `compile` is the seconds that
tuning took by the clock; a ratio is their time over ours: above 1, this package is faster.
MetaSchedule times its trials by the clock, so other work on the machine misleads it: with
`--realtime`, programs have real-time priority in both packages; under `chrt -r 1` all of both has.
TVM is the package `apache-tvm`, with xgboost, psutil and cloudpickle, in PYTHONPATH.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import click
import numpy as np

from benchmarks.harness import beside, rounds_option, served
from benchmarks.te_programs import Side, aligned, compared
from tilewright.cli.rounds import disturbance
from tilewright.runtime.machine import processor_name
from tilewright.tune.measure.priority import enter_realtime

Array = np.ndarray[Any, Any]
BATCH: Final = 16  # trials of a round, as here
SECONDS: Final = 120.0  # that MetaSchedule may build or run a program: its limit is 30


@dataclass(frozen=True, slots=True)
class Asked:
    """What is compared. trials: of each package. rounds: of the final timing. processors: that
    tuning may use."""

    trials: int
    rounds: int
    seed: int
    processors: int
    realtime: bool


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator for two packages. define: its inputs and result, in the words of a te. shapes: of
    the inputs. expected: the result, by NumPy."""

    define: Callable[[Any, Sequence[Any]], Any]
    shapes: tuple[tuple[int, ...], ...]
    expected: Callable[..., Array]


def product(te: Any, args: Sequence[Any]) -> Any:
    """C = A B."""
    a, b = args
    k = te.reduce_axis((0, int(a.shape[1])), name="k")
    shape = (int(a.shape[0]), int(b.shape[1]))
    return te.compute(shape, lambda m, n: te.sum(a[m, k] * b[k, n], axis=k), name="C")


def batched(te: Any, args: Sequence[Any]) -> Any:
    """C[b] = A[b] B[b]."""
    a, b = args
    k = te.reduce_axis((0, int(a.shape[2])), name="k")
    shape = (int(a.shape[0]), int(a.shape[1]), int(b.shape[2]))
    return te.compute(
        shape, lambda i, m, n: te.sum(a[i, m, k] * b[i, k, n], axis=k), name="C"
    )


def convolution(te: Any, args: Sequence[Any]) -> Any:
    """Rows, columns, channels; the image is padded already."""
    x, w = args
    p, q, channels, out = map(int, w.shape)
    r = te.reduce_axis((0, p), name="r")
    s = te.reduce_axis((0, q), name="s")
    c = te.reduce_axis((0, channels), name="c")
    shape = (int(x.shape[0]) - p + 1, int(x.shape[1]) - q + 1, out)
    return te.compute(
        shape,
        lambda h, v, k: te.sum(x[h + r, v + s, c] * w[r, s, c, k], axis=[r, s, c]),
        name="C",
    )


def strided(te: Any, args: Sequence[Any]) -> Any:
    """A convolution of every second position; the image is padded already."""
    x, w = args
    p, q, channels, out = map(int, w.shape)
    r = te.reduce_axis((0, p), name="r")
    s = te.reduce_axis((0, q), name="s")
    c = te.reduce_axis((0, channels), name="c")
    rows, columns, _ = map(int, x.shape)
    shape = ((rows - p) // 2 + 1, (columns - q) // 2 + 1, out)
    return te.compute(
        shape,
        lambda h, v, k: te.sum(
            x[h * 2 + r, v * 2 + s, c] * w[r, s, c, k], axis=[r, s, c]
        ),
        name="C",
    )


def depthwise(te: Any, args: Sequence[Any]) -> Any:
    """Rows, columns, channels; the image is padded already."""
    x, w = args
    p, q, channels = map(int, w.shape)
    r = te.reduce_axis((0, p), name="r")
    s = te.reduce_axis((0, q), name="s")
    shape = (int(x.shape[0]) - p + 1, int(x.shape[1]) - q + 1, channels)
    return te.compute(
        shape,
        lambda h, v, c: te.sum(x[h + r, v + s, c] * w[r, s, c], axis=[r, s]),
        name="C",
    )


def row_sums(te: Any, args: Sequence[Any]) -> Any:
    """Sums of squares."""
    (x,) = args
    k = te.reduce_axis((0, int(x.shape[1])), name="k")
    return te.compute(
        (int(x.shape[0]),), lambda m: te.sum(x[m, k] * x[m, k], axis=k), name="C"
    )


def softmax(te: Any, args: Sequence[Any]) -> Any:
    """Of each row."""
    (x,) = args
    rows, columns = map(int, x.shape)
    k = te.reduce_axis((0, columns), name="k")
    j = te.reduce_axis((0, columns), name="j")
    top = te.compute((rows,), lambda m: te.max(x[m, k], axis=k), name="top")
    grown = te.compute(
        (rows, columns), lambda m, n: te.exp(x[m, n] - top[m]), name="grown"
    )
    total = te.compute((rows,), lambda m: te.sum(grown[m, j], axis=j), name="total")
    return te.compute((rows, columns), lambda m, n: grown[m, n] / total[m], name="C")


def layer_norm(te: Any, args: Sequence[Any]) -> Any:
    """Of each row, by its mean and its mean square."""
    (x,) = args
    rows, columns = map(int, x.shape)
    k = te.reduce_axis((0, columns), name="k")
    j = te.reduce_axis((0, columns), name="j")
    sums = te.compute((rows,), lambda m: te.sum(x[m, k], axis=k), name="sums")
    squares = te.compute(
        (rows,), lambda m: te.sum(x[m, j] * x[m, j], axis=j), name="squares"
    )
    share = 1.0 / columns

    def value(m: Any, n: Any) -> Any:
        mean = sums[m] * share
        variance = squares[m] * share - mean * mean
        return (x[m, n] - mean) / te.sqrt(variance + 1e-5)

    return te.compute((rows, columns), value, name="C")


def lstm_gates(te: Any, args: Sequence[Any]) -> Any:
    """The gates of an LSTM's step: MetaSchedule refuses the whole step, whose last map reads four
    places of them."""
    x, w, bias = args
    k = te.reduce_axis((0, int(x.shape[1])), name="k")
    shape = (int(x.shape[0]), int(w.shape[1]))
    sums = te.compute(
        shape, lambda b, n: te.sum(x[b, k] * w[k, n], axis=k), name="sums"
    )
    return te.compute(shape, lambda b, n: te.sigmoid(sums[b, n] + bias[n]), name="C")


def _windows(x: Array, w: Array) -> Array:
    return np.lib.stride_tricks.sliding_window_view(x, w.shape[:2], (0, 1))


def _convolved(x: Array, w: Array) -> Array:
    found: Array = np.einsum("hvcrs,rsck->hvk", _windows(x, w), w, optimize=True)
    return found


def _filtered(x: Array, w: Array) -> Array:
    found: Array = np.einsum("hvcrs,rsc->hvc", _windows(x, w), w)
    return found


def _normalized(x: Array) -> Array:
    mean = x.mean(1, keepdims=True)
    found: Array = (x - mean) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    return found


def _softmax(x: Array) -> Array:
    grown = np.exp(x - x.max(1, keepdims=True))
    found: Array = grown / grown.sum(1, keepdims=True)
    return found


def _gates(x: Array, w: Array, bias: Array) -> Array:
    found: Array = (1 + np.tanh((x @ w + bias) / 2)) / 2
    return found


OPERATORS: Final = {
    "product_256": Operator(product, ((256, 256), (256, 256)), np.matmul),
    "product_128x768": Operator(product, ((128, 768), (768, 768)), np.matmul),
    "batched_product": Operator(batched, ((12, 128, 64), (12, 64, 128)), np.matmul),
    "conv3x3_64": Operator(convolution, ((30, 30, 64), (3, 3, 64, 64)), _convolved),
    "conv1x1_256": Operator(convolution, ((14, 14, 256), (1, 1, 256, 256)), _convolved),
    "conv3x3_256": Operator(convolution, ((16, 16, 256), (3, 3, 256, 256)), _convolved),
    "conv7x7_stem": Operator(
        strided,
        ((229, 229, 3), (7, 7, 3, 64)),
        lambda x, w: np.einsum(
            "hvcrs,rsck->hvk", _windows(x, w)[::2, ::2], w, optimize=True
        ),
    ),
    "depthwise_128": Operator(depthwise, ((58, 58, 128), (3, 3, 128)), _filtered),
    "row_sums": Operator(row_sums, ((512, 1024),), lambda x: (x * x).sum(1)),
    "softmax": Operator(softmax, ((384, 384),), _softmax),
    "layer_norm": Operator(layer_norm, ((128, 768),), _normalized),
    "lstm_gates": Operator(lstm_gates, ((8, 512), (512, 1024), (1024,)), _gates),
}


def arguments(te: Any, operator: Operator) -> list[Any]:
    """The operator's inputs and its result."""
    placed = [
        te.placeholder(shape, name=f"in{n}", dtype="float32")
        for n, shape in enumerate(operator.shapes)
    ]
    return [*placed, operator.define(te, placed)]


def ours(operator: Operator, arrays: Sequence[Array], asked: Asked) -> Side:
    """The operator as this package tunes it."""
    from tilewright import te
    from tilewright.driver.tuning import How

    start = time.perf_counter()
    args = arguments(te, operator)
    schedule = te.create_schedule(args[-1].op)
    with tempfile.TemporaryDirectory() as folder:
        default = te.build(schedule, args, threads=1, auto=True, records=False)
        function = default.tune(
            trials=asked.trials,
            records=Path(folder, "records.sqlite"),
            how=How(seed=asked.seed, realtime=asked.realtime),
        )
    return Side(lambda: function(*arrays), time.perf_counter() - start)


def without_other_processors() -> None:
    """The intrinsics of GPUs and of other processors, which no program here has, are texts that TVM
    parses for half a minute in each of its processes."""
    for name in ("cuda", "rocm", "metal", "hexagon", "arm_cpu", "riscv_cpu"):
        full = f"tvm.s_tir.tensor_intrin.{name}"
        sys.modules.setdefault(full, ModuleType(full))


def prepare_runner() -> None:
    """For a process of MetaSchedule that times programs: real-time priority, as here."""
    without_other_processors()
    enter_realtime(SECONDS)


def theirs(operator: Operator, arrays: Sequence[Array], asked: Asked) -> Side:
    """The operator as MetaSchedule tunes it, on the same memory."""
    import tvm
    from llvmlite import binding
    from tvm import te
    from tvm.s_tir import meta_schedule as ms

    without_other_processors()
    start = time.perf_counter()
    made = te.create_prim_func(arguments(te, operator))
    described = {"kind": "llvm", "mcpu": binding.get_host_cpu_name(), "num-cores": 1}
    target = tvm.target.Target(described)
    builder = ms.builder.LocalBuilder(
        max_workers=asked.processors,
        timeout_sec=SECONDS,
        initializer=without_other_processors,
    )
    prepared = prepare_runner if asked.realtime else without_other_processors
    runner = ms.runner.LocalRunner(timeout_sec=SECONDS, initializer=prepared)
    with tempfile.TemporaryDirectory() as folder:
        records = ms.tune_tir(
            made,
            target,
            folder,
            asked.trials,
            num_trials_per_iter=BATCH,
            builder=builder,
            runner=runner,
            seed=asked.seed,
        )
        best = ms.tir_integration.compile_tir(records, made, target)
    if best is None:
        raise click.ClickException("none of MetaSchedule's trials ran")
    function = tvm.compile(best.mod, target=target)["main"]
    seconds = time.perf_counter() - start
    held = [tvm.runtime.from_dlpack(a) for a in arrays]
    return Side(lambda: function(*held), seconds)


def measure(name: str, asked: Asked) -> dict[str, Any]:
    """One operator in this process: its times, ratio and difference."""
    operator = OPERATORS[name]
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(s, np.float32) for s in operator.shapes]
    expected = operator.expected(*inputs)
    arrays = [aligned(a) for a in (*inputs, np.zeros(expected.shape, np.float32))]
    sides = [f(operator, arrays, asked) for f in (ours, theirs)]
    if asked.realtime:
        enter_realtime(SECONDS)
    return compared(sides, arrays[-1], expected, asked.rounds, time.process_time)


def measured(name: str, asked: Asked) -> dict[str, Any]:
    """One operator in its own process; `error` is what went wrong there."""
    numbers = {k: v for k, v in asdict(asked).items() if k != "realtime"}
    arguments = [name, *(f"--{k}={v}" for k, v in numbers.items())]
    if asked.realtime:
        arguments.append("--realtime")
    extra = {"TVM_NUM_THREADS": "1"}
    return served("benchmarks.metaschedule", arguments, asked.processors, extra)


@click.command(epilog="Example: python -m benchmarks.metaschedule product_256")
@click.argument("names", nargs=-1)
@click.option("--trials", default=64)
@rounds_option(7)
@click.option("--seed", default=0)
@click.option("--processors", default=2, help="that tuning may use")
@click.option("--realtime", is_flag=True, help="time with real-time priority")
@click.option("--serve", is_flag=True, hidden=True)
def main(
    names: tuple[str, ...],
    trials: int,
    rounds: int,
    seed: int,
    processors: int,
    realtime: bool,
    serve: bool,
) -> None:
    """Tunes operators here and by MetaSchedule, and times the best of both."""
    asked = Asked(trials, rounds, seed, processors, realtime)
    if serve:
        print(json.dumps(measure(names[0], asked)))
        return
    print(f"{processor_name()}, {os.cpu_count()} processors, {trials} trials")
    said = disturbance()
    if said:
        print(said)
    beside("TVM", names or OPERATORS, partial(measured, asked=asked))


if __name__ == "__main__":
    main()
