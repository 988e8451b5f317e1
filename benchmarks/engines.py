"""The engines that can be timed: each loads a model and gives back a function of the inputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray
Feeds = dict[str, Array]
Runner = Callable[[Feeds], list[Array]]


def _listed(result: Any) -> list[Array]:
    """Whatever an executable returns (one array, several, or a mapping) as a list of arrays."""
    if isinstance(result, dict):
        return [np.asarray(v) for v in result.values()]
    if isinstance(result, list | tuple):
        return [np.asarray(v) for v in result]
    return [np.asarray(result)]


def tilewright(path: Path, threads: int) -> Runner:
    """Compiles an ONNX file (or loads a .tw artifact) with Tilewright."""
    import tilewright as tw

    if path.suffix == ".tw":
        exe = tw.load(path, threads=threads)
    else:
        exe = tw.compile(path, threads=threads)
    return lambda feeds: _listed(exe(feeds))


def onnxruntime(path: Path, threads: int) -> Runner:
    """ONNX Runtime's CPU provider with all its graph optimisations, operators in sequence."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda feeds: session.run(names, feeds)


ENGINES: dict[str, Callable[[Path, int], Runner]] = {
    "tilewright": tilewright,
    "onnxruntime": onnxruntime,
}
