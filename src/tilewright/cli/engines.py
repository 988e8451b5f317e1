"""The engines that can be timed: each loads a model file and returns a function of the inputs."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np

from tilewright.frontends import torch

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]
Runner = Callable[[Feeds], list[Array]]


def tilewright(
    path: Path,
    threads: int,
    dims: Mapping[str, int] | None = None,
    ranges: Mapping[str, Any] | None = None,
    **options: Any,
) -> Runner:
    """Compiles an ONNX file by the options of `compile`, or loads a .tw artifact.

    ranges: extents that dimensions may have, and whether they are the ends of a range; all of them
    are then compiled in advance.
    """
    exe: Any
    if path.suffix == ".tw":
        from tilewright.runtime.ranged import load

        exe = load(path, threads=threads)
    else:
        from tilewright.driver import compile

        if ranges:
            named: dict[str, Any] = dict(dims or {})
            for name, (ends, extents) in ranges.items():
                named[name] = tuple(extents) if ends else extents
            dims, options["jit"] = named, False
        exe = compile(path, threads=threads, dims=dims or None, **options)
    return lambda feeds: list(exe.run(feeds))


def onnxruntime(
    path: Path, threads: int, dims: Mapping[str, int] | None = None
) -> Runner:
    """ONNX Runtime's CPU provider with all its graph optimizations, operators in sequence."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    for name, extent in (dims or {}).items():
        options.add_free_dimension_override_by_name(name, extent)
    session = ort.InferenceSession(
        str(path), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return lambda feeds: session.run(names, feeds)


def openvino(
    path: Path,
    threads: int,
    dims: Mapping[str, int] | None = None,
    precision: str = "f32",
) -> Runner:
    """OpenVINO's CPU plug-in for latency, by default in float32 as the others compute.

    Inputs are bound, not copied; the results are views of OpenVINO's own outputs, which the next
    call of the same caller overwrites. Each caller (a thread) has its own request.
    """
    import openvino as ov

    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": precision,
    }
    compiled = ov.Core().compile_model(str(path), "CPU", settings)
    own = threading.local()

    def run(feeds: Feeds) -> list[Array]:
        if not hasattr(own, "request"):
            own.request, own.bound = compiled.create_infer_request(), None
        if own.bound is not feeds:
            for name, array in feeds.items():
                own.request.set_tensor(name, ov.Tensor(array, shared_memory=True))
            own.bound = feeds
        own.request.infer()
        return [own.request.get_tensor(port).data for port in compiled.outputs]

    return run


def torch_eager(
    path: Path, threads: int, dims: Mapping[str, int] | None = None, trust: bool = False
) -> Runner:
    """PyTorch unchanged, operator by operator, on a program that torch.export.save wrote."""
    return torch_runner(_program(path, threads, trust))


def torch_compile(
    path: Path, threads: int, dims: Mapping[str, int] | None = None, trust: bool = False
) -> Runner:
    """`torch.compile` with frozen weights, which lets Inductor fold and pack them.

    It compiles at the first call.
    """
    module = _program(path, threads, trust)
    return torch_runner(inductor(module))


def _program(path: Path, threads: int, trust: bool) -> Callable[..., Any]:
    """The module in the file as a function of its arrays, in the order of the ONNX inputs."""
    import torch
    from torch.utils import _pytree as pytree

    from tilewright.base.memory import memory_limit
    from tilewright.frontends.torch import load

    torch.set_num_threads(threads)
    program = load(path, memory_limit=memory_limit(), trust=trust)
    module, structure = program.module(), program.call_spec.in_spec

    def call(*tensors: Any) -> Any:
        positional, named = pytree.tree_unflatten(list(tensors), structure)
        return pytree.tree_leaves(module(*positional, **named))

    return call


def inductor(module: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.compile` of a module, with frozen weights."""
    import torch
    import torch._inductor.config as settings

    settings.freezing = True
    settings.compile_threads = 1  # no pool of compilers during the timing
    compiled: Callable[..., Any] = torch.compile(module)
    return compiled


def torch_runner(module: Callable[..., Any]) -> Runner:
    """A function of tensors as one of arrays, without gradients."""
    import torch

    def run(feeds: Feeds) -> list[Array]:
        with torch.inference_mode():
            result = module(*map(torch.from_numpy, feeds.values()))
        return [
            y.numpy()
            for y in (result if isinstance(result, tuple | list) else (result,))
        ]

    return run


# Engine -> model file, threads, symbolic extents to Runner.
ENGINES: Final[dict[str, Callable[..., Runner]]] = {
    "tilewright": tilewright,
    "onnxruntime": onnxruntime,
    "openvino": openvino,
    "torch_eager": torch_eager,
    "torch_compile": torch_compile,
}
# Those that run a program of PyTorch and no ONNX file.
TORCH: Final = frozenset({"torch_eager", "torch_compile"})
_PACKAGE: Final = dict.fromkeys(TORCH, "torch")
_INSTALL: Final = dict.fromkeys(TORCH, torch.INSTALL)


def missing(engine: str) -> str | None:
    """Why an engine of ENGINES cannot be used here, or None if it can."""
    package = _PACKAGE.get(engine, engine)
    if find_spec(package) is None:
        return f"not installed: {_INSTALL.get(engine, f'pip install {package}')}"
    if engine == "torch_compile" and not any(map(shutil.which, ("g++", "clang++"))):
        return "no C++ compiler: torch.compile needs g++ or clang++"
    return None
