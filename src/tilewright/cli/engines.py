"""The engines that can be timed: each loads a model file and gives a function of the inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]
Runner = Callable[[Feeds], list[Array]]


def tilewright(
    path: Path, threads: int, dims: Mapping[str, int] | None = None, **options: Any
) -> Runner:
    """Compiles an ONNX file by the options of `compile`, or loads a .tw artifact."""
    exe: Callable[..., Any]
    if path.suffix == ".tw":
        from tilewright.runtime.executable import load

        exe = load(path, threads=threads)
    else:
        from tilewright.driver import compile

        exe = compile(path, threads=threads, dims=dims or None, **options)
    return lambda feeds: listed(exe(feeds))


def onnxruntime(path: Path, threads: int, dims: Mapping[str, int] | None = None) -> Runner:
    """ONNX Runtime's CPU provider with all its graph optimisations, operators in sequence."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    for name, extent in (dims or {}).items():
        options.add_free_dimension_override_by_name(name, extent)
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda feeds: session.run(names, feeds)


def openvino(
    path: Path, threads: int, dims: Mapping[str, int] | None = None, precision: str = "f32"
) -> Runner:
    """OpenVINO's CPU plug-in for latency, by default in float32 as the others compute."""
    import openvino as ov

    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": precision,
    }
    compiled = ov.Core().compile_model(str(path), "CPU", settings)
    request = compiled.create_infer_request()
    return lambda feeds: list(request.infer(feeds).values())


# Engine, which is also its package's name -> model file, threads, symbolic extents to Runner.
ENGINES: Final[dict[str, Callable[..., Runner]]] = {
    "tilewright": tilewright,
    "onnxruntime": onnxruntime,
    "openvino": openvino,
}
# Asked for often, and why they cannot run the same file.
NO_ENGINE: Final = {
    "torch": "PyTorch reads no ONNX files; compile the module with tw.compile(module, inputs)",
}


def missing(engine: str) -> str | None:
    """Why ``engine`` cannot be used here, or None if it can."""
    from importlib.util import find_spec

    if engine not in ENGINES:
        return NO_ENGINE.get(engine, f"no engine of that name; there are {', '.join(ENGINES)}")
    return None if find_spec(engine) else f"not installed: pip install {engine}"


def listed(result: Any) -> list[Array]:
    """Whatever an executable returns (one array, several, or a mapping) as a list of arrays."""
    if isinstance(result, Mapping):
        return [np.asarray(v) for v in result.values()]
    if isinstance(result, list | tuple):
        return [np.asarray(v) for v in result]
    return [np.asarray(result)]
