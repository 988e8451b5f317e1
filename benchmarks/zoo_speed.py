"""Times of a network of the zoo on this machine: ours against PyTorch, Inductor and ONNX Runtime.

`timed` is of the executable of the importer, `raced` of `torch.compile(backend="tilewright")`. All
engines run interleaved in one process, so that a disturbance affects all alike. On one thread,
processor time is measured, which other work on the machine does not lengthen.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from benchmarks import zoo_checks, zoo_export
from tilewright.cli import engines

ROUNDS: Final = 11
LEAST: Final = 5  # rounds, where they take longer than these seconds
SECONDS: Final = 12.0
# Of the time of the best of the others: below it the kernels are named.
LOSS: Final = 0.95
NAMED: Final = 6  # kernels
# Seconds before a turn of several threads: the workers of the engine before spin for a while.
PAUSE: Final = 0.2

Run = Callable[[], list[torch.Tensor]]


def timed(
    module: nn.Module,
    inputs: zoo_checks.Inputs,
    threads: Sequence[int],
    peers: Sequence[str] = (),
) -> zoo_checks.Row:
    """Milliseconds of each engine, how many times faster ours is, and its dearest kernels."""
    number = threads[0]
    torch.set_num_threads(number)
    exe = zoo_checks.compiled(module, inputs, number)
    given = _given(exe, module, inputs)
    runs: dict[str, Run] = {"tilewright": lambda: _tensors(exe.run(given))}
    failed = {}
    for name in peers or _PEERS:
        try:
            runs[name] = _PEERS[name](module, inputs, number)
            runs[name]()
        except Exception as error:
            runs.pop(name, None)
            failed[name] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    right = zoo_checks.in_double(module, inputs)
    near = _eager(module, inputs, number)()
    row = zoo_checks.judged(runs["tilewright"](), near, right)
    row |= _raced(runs, right, number) | {"failed": failed}
    if min(row["speed"].values(), default=LOSS) < LOSS:
        row["kernels"] = _dearest(exe, given)
    return row


def raced(
    module: nn.Module,
    inputs: zoo_checks.Inputs,
    threads: Sequence[int],
    peers: Sequence[str] = (),
) -> zoo_checks.Row:
    """The row of `captured`, and the times of `torch.compile` with our backend and of the peers.

    Gradients are off, as in `torch.no_grad`. A network that is not right is not timed.
    """
    number = threads[0]
    torch.set_num_threads(number)
    row = zoo_checks.captured(module, inputs, threads)
    if row["status"] not in ("ok", "left"):
        return row
    runs = {"tilewright": _backend(module, inputs, number)}
    for name in peers or ("torch_eager", "torch_compile"):
        runs[name] = _PEERS[name](module, inputs, number)
        runs[name]()
    return row | _raced(runs, zoo_checks.in_double(module, inputs), number)


def _raced(
    runs: Mapping[str, Run], right: Sequence[torch.Tensor], threads: int
) -> zoo_checks.Row:
    """Milliseconds of ours, how many times faster it is than each other, and all errors."""
    errors = {name: zoo_checks.distance(run(), right) for name, run in runs.items()}
    if threads == 1:
        times = _by_turns(runs, time.process_time)
    else:
        times = _by_turns(runs, time.perf_counter, PAUSE)
    ours = times.pop("tilewright")
    return {
        "ms": round(ours, 3),
        "speed": {name: round(ms / ours, 3) for name, ms in times.items()},
        "errors": {name: float(f"{e:.2g}") for name, e in errors.items()},
    }


def _given(exe: Any, module: nn.Module, inputs: zoo_checks.Inputs) -> dict[str, Any]:
    names = [t.name for t in exe.inputs]
    by_name = hasattr(module, "config")
    given = [inputs[n] for n in names] if by_name else inputs.values()
    return {n: x.numpy() for n, x in zip(names, given, strict=True)}


def _tensors(arrays: Sequence[Any]) -> list[torch.Tensor]:
    return [torch.as_tensor(y) for y in arrays]


def _by_turns(
    runs: Mapping[str, Run], clock: Callable[[], float], pause: float = 0.0
) -> dict[str, float]:
    """Medians over the rounds, in milliseconds; pause: seconds before each turn."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    begun = time.perf_counter()
    for round in range(ROUNDS):
        if round >= LEAST and time.perf_counter() - begun > SECONDS:
            break
        for name, run in runs.items():
            time.sleep(pause)
            run()  # its weights and code are in the caches again, and its workers awake
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
    return _compiled(engines.inductor(module), module, inputs)


def _backend(module: nn.Module, inputs: zoo_checks.Inputs, threads: int) -> Run:
    return _compiled(zoo_checks.fast(module, threads), module, inputs)


def _compiled(fast: Any, module: nn.Module, inputs: zoo_checks.Inputs) -> Run:
    by_name = hasattr(module, "config")

    def run() -> Any:
        return fast(**inputs) if by_name else fast(*inputs.values())

    return _without_gradients(run)


def _exported(
    engine: Callable[..., engines.Runner],
    module: nn.Module,
    inputs: zoo_checks.Inputs,
    threads: int,
) -> Run:
    run = engine(_file(module, inputs), threads)
    feeds = {name: x.numpy() for name, x in inputs.items()}
    return lambda: _tensors(run(feeds))


# The ONNX file of a module, for as long as the process lives: engines map its weights.
_FILES: Final[dict[nn.Module, tempfile.TemporaryDirectory[str]]] = {}


def _file(module: nn.Module, inputs: zoo_checks.Inputs) -> Path:
    if module in _FILES:
        return Path(_FILES[module].name) / "model.onnx"
    folder = tempfile.TemporaryDirectory()
    path = Path(folder.name) / "model.onnx"
    zoo_export.export(module, inputs, path)
    _FILES[module] = folder
    return path


_PEERS: Final[Mapping[str, Callable[[nn.Module, zoo_checks.Inputs, int], Run]]] = {
    "torch_eager": _eager,
    "torch_compile": _inductor,
    "onnxruntime": partial(_exported, engines.onnxruntime),
    "openvino": partial(_exported, engines.openvino),
}
