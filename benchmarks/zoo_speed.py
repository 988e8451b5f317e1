"""Times of a network of the zoo on this machine: ours beside PyTorch, Inductor and ONNX Runtime.

All engines are in one process and run by turns, so that a disturbance meets each alike. On one
thread the time is that of the processor, which other work on the machine does not lengthen.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from benchmarks import zoo_checks
from tilewright.cli import engines

ROUNDS: Final = 15
# Of the time of the best of the others: below it the kernels are named.
LOSS: Final = 0.95
NAMED: Final = 6  # kernels

Run = Callable[[], list[torch.Tensor]]


def timed(
    module: nn.Module, inputs: zoo_checks.Inputs, threads: Sequence[int]
) -> zoo_checks.Row:
    """Milliseconds of each engine, how many times faster ours is, and its dearest kernels."""
    number = threads[0]
    torch.set_num_threads(number)
    exe = zoo_checks.compiled(module, inputs, number)
    given = _given(exe, module, inputs)
    runs: dict[str, Run] = {"tilewright": lambda: _tensors(exe.run(given))}
    failed = {}
    for name, make in _PEERS.items():
        try:
            runs[name] = make(module, inputs, number)
            runs[name]()
        except Exception as error:
            runs.pop(name, None)
            failed[name] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    right = zoo_checks.in_double(module, inputs)
    row = zoo_checks.judged(runs["tilewright"](), runs["torch_eager"](), right)
    errors = {name: zoo_checks.distance(run(), right) for name, run in runs.items()}
    times = _by_turns(runs, time.thread_time if number == 1 else time.perf_counter)
    ours = times.pop("tilewright")
    speed = {name: round(ms / ours, 3) for name, ms in times.items()}
    row |= {"ms": round(ours, 3), "speed": speed, "failed": failed}
    row["errors"] = {name: float(f"{e:.2g}") for name, e in errors.items()}
    if min(speed.values()) < LOSS:
        row["kernels"] = _dearest(exe, given)
    return row


def _given(exe: Any, module: nn.Module, inputs: zoo_checks.Inputs) -> dict[str, Any]:
    names = [t.name for t in exe.inputs]
    by_name = hasattr(module, "config")
    given = [inputs[n] for n in names] if by_name else inputs.values()
    return {n: x.numpy() for n, x in zip(names, given, strict=True)}


def _tensors(arrays: Sequence[Any]) -> list[torch.Tensor]:
    return [torch.as_tensor(y) for y in arrays]


def _by_turns(runs: Mapping[str, Run], clock: Callable[[], float]) -> dict[str, float]:
    """Medians over the rounds, in milliseconds."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            run()  # its weights and code are in the caches again
            start = clock()
            run()
            found[name].append(clock() - start)
    return {name: 1e3 * statistics.median(times) for name, times in found.items()}


def _dearest(exe: Any, given: Mapping[str, Any]) -> list[tuple[str, float]]:
    """The kernels with the largest times, in microseconds."""
    rows = sorted(_rows(exe.profile(given)), key=lambda row: -row[1])
    return rows[:NAMED]


def _rows(profile: Any) -> Iterator[tuple[str, float]]:
    for row in profile.rows:
        yield row.name, round(1e6 * row.seconds, 1)


def _without_gradients(run: Callable[[], Any]) -> Run:
    def call() -> list[torch.Tensor]:
        with torch.inference_mode():
            return zoo_checks.leaves(run())

    return call


def _eager(module: nn.Module, inputs: zoo_checks.Inputs, threads: int) -> Run:
    return _without_gradients(lambda: zoo_checks.called(module, inputs))


def _inductor(module: nn.Module, inputs: zoo_checks.Inputs, threads: int) -> Run:
    fast: Any = engines.inductor(module)
    by_name = hasattr(module, "config")

    def run() -> Any:
        return fast(**inputs) if by_name else fast(*inputs.values())

    return _without_gradients(run)


def _onnxruntime(module: nn.Module, inputs: zoo_checks.Inputs, threads: int) -> Run:
    by_name = hasattr(module, "config")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        torch.onnx.export(
            module,
            () if by_name else tuple(inputs.values()),
            path,
            kwargs=dict(inputs) if by_name else None,
            input_names=list(inputs),
            dynamo=True,
            verbose=False,
        )
        run = engines.onnxruntime(path, threads)
    feeds = {name: x.numpy() for name, x in inputs.items()}
    return lambda: _tensors(run(feeds))


_PEERS: Final[Mapping[str, Callable[[nn.Module, zoo_checks.Inputs, int], Run]]] = {
    "torch_eager": _eager,
    "torch_compile": _inductor,
    "onnxruntime": _onnxruntime,
}
