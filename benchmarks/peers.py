"""The engines that we are measured against and that read no ONNX files themselves."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from tilewright.cli import engines
from tilewright.cli.engines import Runner

# A row of a kind is void if one of these is missing.
FOUR: Final = ("onnxruntime", "openvino", "torch_eager", "torch_compile")
REQUIRED: Final[dict[str, tuple[str, ...]]] = {
    "network": FOUR,
    "operator": FOUR,
    "bfloat16": ("openvino_bf16", "torch_eager", "torch_compile"),
    "int8": ("onnxruntime", "openvino"),
}
# A probed engine takes part in a row if it is at most this many times slower.
FAR_BEHIND: Final = 10.0


def _module(path: Path) -> Any:
    """The network of an ONNX file of ours as a torch module with the same weights."""
    from benchmarks import models, onnx_torch, torch_nets

    how = models.RECIPES.get(path.stem)
    if how is not None and how.source != "torch":
        return onnx_torch.convert(path)
    return torch_nets.module(path.stem, how.logit_gain if how else 1.0)


def torch_eager(
    path: Path, threads: int, dims: Mapping[str, int] | None = None
) -> Runner:
    """PyTorch unchanged, operator by operator."""
    import torch

    torch.set_num_threads(threads)
    return engines.torch_runner(_module(path))


def torch_compile(
    path: Path, threads: int, dims: Mapping[str, int] | None = None
) -> Runner:
    """`torch.compile` with frozen weights, which lets Inductor fold and pack them."""
    import torch

    torch.set_num_threads(threads)
    run = engines.torch_runner(engines.inductor(_module(path)))
    from benchmarks import models

    run(models.inputs(path.stem))  # compiles: this is part of loading
    return run


def tilewright_avx2(
    path: Path, threads: int, dims: Mapping[str, int] | None = None
) -> Runner:
    """Tilewright for a processor with AVX2 and without AVX-512."""
    from tilewright.driver import compile
    from tilewright.driver.sized import SizedExecutable

    exe = compile(path, threads=threads, dims=dims or None, mcpu="x86-64-v3")
    assert not isinstance(exe, SizedExecutable)
    return lambda feeds: list(exe.run(feeds))


# What keeps the vendors' libraries to AVX2, read when they are loaded. ONNX Runtime has no such.
_AVX2: Final = {
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "DNNL_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
}


def openvino_avx2(
    path: Path, threads: int, dims: Mapping[str, int] | None = None
) -> Runner:
    """OpenVINO with its kernels from oneDNN kept to AVX2."""
    os.environ.update(_AVX2)
    return engines.openvino(path, threads, dims)


def torch_avx2(
    path: Path, threads: int, dims: Mapping[str, int] | None = None
) -> Runner:
    """PyTorch, operator by operator, its libraries kept to AVX2."""
    os.environ.update(_AVX2)
    return torch_eager(path, threads, dims)


def openvino_bf16(
    path: Path, threads: int, dims: Mapping[str, int] | None = None
) -> Runner:
    """OpenVINO, computing in bfloat16."""
    return engines.openvino(path, threads, dims, precision="bf16")


def jax(path: Path, threads: int, dims: Mapping[str, int] | None = None) -> Runner:
    """XLA's CPU backend through JAX."""
    from benchmarks import compilers

    return compilers.jax(path)


def iree(path: Path, threads: int, dims: Mapping[str, int] | None = None) -> Runner:
    """IREE's CPU backend."""
    from benchmarks import compilers

    return compilers.iree(path, threads)


def tvm(path: Path, threads: int, dims: Mapping[str, int] | None = None) -> Runner:
    """TVM with its default schedules."""
    from benchmarks import compilers

    return compilers.tvm(path, threads)


# Engines not in `tilewright.cli.engines`: those that need the network's own definition.
PEERS: Final[dict[str, Callable[..., Runner]]] = {
    "torch_eager": torch_eager,
    "torch_compile": torch_compile,
    "openvino_bf16": openvino_bf16,
    "tilewright_avx2": tilewright_avx2,
    "openvino_avx2": openvino_avx2,
    "torch_avx2": torch_avx2,
    "jax": jax,
    "iree": iree,
    "tvm": tvm,
}
PACKAGE: Final = {
    "torch_avx2": "torch",
    "openvino_bf16": "openvino",
    "tilewright_avx2": "tilewright",
    "openvino_avx2": "openvino",
}
ENGINES: Final = engines.ENGINES | PEERS


def missing(engine: str) -> str | None:
    """Why the engine cannot be used here, or None if it can."""
    if engine not in ENGINES:
        return f"no engine of that name; there are {', '.join(ENGINES)}"
    return engines.missing(PACKAGE.get(engine, engine))
