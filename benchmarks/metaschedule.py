"""Tuning against TVM's MetaSchedule: the same definitions, trials and thread, in the same run.

python -m benchmarks.metaschedule [NAME ...] [--trials N] [--rounds N]

Operators in te, whose definitions are the same lines in both packages. Each is its own process
on one processor: this package tunes it, then MetaSchedule does, with as many trials and its default
cost model. The results of both are compared with NumPy's, and both are timed in alternating rounds
by the processor's time. `compile` is the seconds that tuning took by the clock; a ratio is their
time over ours: above 1, this package is faster. MetaSchedule times its trials by the clock, so
other work on the machine misleads it. TVM is the package `apache-tvm`, with xgboost, in PYTHONPATH.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import click
import numpy as np

from benchmarks.harness import beside, served
from benchmarks.te_programs import Side, aligned, compared
from tilewright.cli.rounds import disturbance
from tilewright.runtime.machine import processor_name

Array = np.ndarray[Any, Any]
BATCH: Final = 16  # trials of a round, as here
SECONDS: Final = 120.0  # that MetaSchedule may build or run a program: its limit is 30


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


def _windows(x: Array, w: Array) -> Array:
    return np.lib.stride_tricks.sliding_window_view(x, w.shape[:2], (0, 1))  # type: ignore[no-any-return, call-overload]


def _convolved(x: Array, w: Array) -> Array:
    found: Array = np.einsum("hvcrs,rsck->hvk", _windows(x, w), w, optimize=True)
    return found


def _filtered(x: Array, w: Array) -> Array:
    found: Array = np.einsum("hvcrs,rsc->hvc", _windows(x, w), w)
    return found


OPERATORS: Final = {
    "product_256": Operator(product, ((256, 256), (256, 256)), np.matmul),
    "product_128x768": Operator(product, ((128, 768), (768, 768)), np.matmul),
    "batched_product": Operator(batched, ((12, 128, 64), (12, 64, 128)), np.matmul),
    "conv3x3_64": Operator(convolution, ((30, 30, 64), (3, 3, 64, 64)), _convolved),
    "conv1x1_256": Operator(convolution, ((14, 14, 256), (1, 1, 256, 256)), _convolved),
    "depthwise_128": Operator(depthwise, ((58, 58, 128), (3, 3, 128)), _filtered),
    "row_sums": Operator(row_sums, ((512, 1024),), lambda x: (x * x).sum(1)),
}


def _arguments(te: Any, operator: Operator) -> list[Any]:
    placed = [
        te.placeholder(shape, name=f"in{n}", dtype="float32")
        for n, shape in enumerate(operator.shapes)
    ]
    return [*placed, operator.define(te, placed)]


def ours(operator: Operator, arrays: Sequence[Array], trials: int) -> Side:
    """The operator as this package tunes it."""
    from tilewright import te

    start = time.perf_counter()
    args = _arguments(te, operator)
    schedule = te.create_schedule(args[-1].op)
    with tempfile.TemporaryDirectory() as folder:
        default = te.build(schedule, args, threads=1, auto=True, records=False)
        function = default.tune(trials=trials, records=Path(folder, "records.sqlite"))
    return Side(lambda: function(*arrays), time.perf_counter() - start)


def without_other_processors() -> None:
    """The intrinsics of GPUs and of other processors, which no program here has, are texts that TVM
    parses for half a minute in each of its processes."""
    for name in ("cuda", "rocm", "metal", "hexagon", "arm_cpu", "riscv_cpu"):
        full = f"tvm.s_tir.tensor_intrin.{name}"
        sys.modules.setdefault(full, ModuleType(full))


def theirs(operator: Operator, arrays: Sequence[Array], trials: int) -> Side:
    """The operator as MetaSchedule tunes it, on the same memory."""
    import tvm
    from llvmlite import binding
    from tvm import te
    from tvm.s_tir import meta_schedule as ms

    without_other_processors()
    start = time.perf_counter()
    made = te.create_prim_func(_arguments(te, operator))
    described = {"kind": "llvm", "mcpu": binding.get_host_cpu_name(), "num-cores": 1}
    target = tvm.target.Target(described)
    builder = ms.builder.LocalBuilder(
        max_workers=1, timeout_sec=SECONDS, initializer=without_other_processors
    )
    runner = ms.runner.LocalRunner(timeout_sec=SECONDS)
    with tempfile.TemporaryDirectory() as folder:
        records = ms.tune_tir(
            made,
            target,
            folder,
            trials,
            num_trials_per_iter=BATCH,
            builder=builder,
            runner=runner,
            seed=0,
        )
        best = ms.tir_integration.compile_tir(records, made, target)
    if best is None:
        raise click.ClickException("none of MetaSchedule's trials ran")
    function = tvm.compile(best.mod, target=target)["main"]
    seconds = time.perf_counter() - start
    held = [tvm.runtime.from_dlpack(a) for a in arrays]
    return Side(lambda: function(*held), seconds)


def measure(name: str, trials: int, rounds: int) -> dict[str, Any]:
    """One operator in this process: its times, ratio and difference."""
    operator = OPERATORS[name]
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(s, np.float32) for s in operator.shapes]
    expected = operator.expected(*inputs)
    arrays = [aligned(a) for a in (*inputs, np.zeros(expected.shape, np.float32))]
    sides = [f(operator, arrays, trials) for f in (ours, theirs)]
    return compared(sides, arrays[-1], expected, rounds, time.process_time)


def measured(name: str, trials: int, rounds: int) -> dict[str, Any]:
    """One operator in its own process; `error` is what went wrong there."""
    arguments = [name, "--trials", str(trials), "--rounds", str(rounds)]
    return served("benchmarks.metaschedule", arguments, 1, {"TVM_NUM_THREADS": "1"})


@click.command(epilog="Example: python -m benchmarks.metaschedule product_256")
@click.argument("names", nargs=-1)
@click.option("--trials", default=64)
@click.option("--rounds", default=7, help="rounds of each package")
@click.option("--serve", is_flag=True, hidden=True)
def main(names: tuple[str, ...], trials: int, rounds: int, serve: bool) -> None:
    """Tunes operators here and by MetaSchedule, and times the best of both."""
    if serve:
        print(json.dumps(measure(names[0], trials, rounds)))
        return
    print(f"{processor_name()}, {os.cpu_count()} processors, {trials} trials")
    said = disturbance()
    if said:
        print(said)
    beside("TVM", names or OPERATORS, partial(measured, trials=trials, rounds=rounds))


if __name__ == "__main__":
    main()
