"""The peers of `benchmarks.gpu`: what each needs, and how it computes a case.

A peer gives its result, to be compared, and a function that returns the seconds of one call. It is
left out, with the reason, where it is not installed, where it has no GPU, and for what it does not
compute. Float32 is multiplied as such: JAX would round it to tf32. For GPUs, `torch.compile` writes
its kernels in Triton, so Triton is its row. PyTorch is timed by CUDA events; others, which do not
tell their device's time, by the host's clock around calls in a row. Without a GPU, PyTorch, XLA and
TVM compute small cases on the processor, so that this file is run; no such time means anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any, Final

import numpy as np
import onnx

from benchmarks.turns import stopwatch

Array = np.ndarray[Any, Any]
CALLS: Final = 20  # in a row, by the host's clock on a GPU


class LeftOutError(Exception):
    """Why a peer does not compute a case here."""


@dataclass(frozen=True)
class PeerCase:
    """An operator for peers.

    model: as ONNX. arrays: its inputs, as float32. dtype: of its tensors. expected, peer: how a
    module like NumPy computes it, and how `torch` does. gpu: whether it is to run on one.
    """

    name: str
    model: onnx.ModelProto
    arrays: Sequence[Array]
    dtype: str
    expected: Callable[..., Any]
    peer: Callable[..., Any]
    gpu: bool


Prepared = tuple[Any, Callable[[], float]]  # its result; the seconds of one call
Prepare = Callable[[PeerCase], Prepared]


def _need(package: str, install: str) -> None:
    """Raise LeftOutError without a package."""
    if find_spec(package) is None:
        raise LeftOutError(f"not installed: pip install {install}")


def _timed(call: Callable[[], Any], wait: Callable[[Any], Any], gpu: bool) -> Prepared:
    """By the host's clock: calls in a row, of which the last is waited for."""
    result = call()
    wait(result)

    def several() -> None:
        last = result
        for _ in range(CALLS):
            last = call()
        wait(last)

    if not gpu:
        return result, stopwatch(lambda: wait(call()))
    in_a_row = stopwatch(several)
    return result, lambda: in_a_row() / CALLS


def torch(case: PeerCase, compiles: bool = False) -> Prepared:
    """PyTorch, eager or compiled."""
    _need("torch", "torch")
    import torch

    if case.gpu and not torch.cuda.is_available():
        raise LeftOutError("its PyTorch has no CUDA device")
    if compiles and not case.gpu:
        raise LeftOutError("it is timed on GPUs only")
    device = "cuda" if case.gpu else "cpu"
    dtype = getattr(torch, case.dtype)
    given = [torch.from_numpy(a).to(device, dtype) for a in case.arrays]
    run: Any = partial(torch.compile(case.peer) if compiles else case.peer, torch)
    result = run(*given).to(torch.float32).cpu().numpy()
    if not case.gpu:
        return result, stopwatch(partial(run, *given), time.perf_counter)

    def once() -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run(*given)
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e-3

    return result, once


def xla(case: PeerCase) -> Prepared:
    """XLA, by JAX."""
    _need("jax", "'jax[cuda12]'")
    import jax

    if case.gpu and jax.default_backend() != "gpu":
        what = f"JAX computes on {jax.default_backend()!r}"
        raise LeftOutError(f"{what}: pip install 'jax[cuda12]'")
    with jax.default_matmul_precision("highest"):
        given = [jax.numpy.asarray(a, case.dtype) for a in case.arrays]
        run = jax.jit(partial(case.expected, jax.numpy)).lower(*given).compile()
    return _timed(partial(run, *given), jax.block_until_ready, case.gpu)


def tvm(case: PeerCase) -> Prepared:
    """TVM's Relax with its default schedules, not tuned."""
    _need("tvm", "apache-tvm")
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    device = tvm.cuda() if case.gpu else tvm.cpu()
    if not device.exist:
        raise LeftOutError("its TVM has no CUDA device")
    if case.dtype != "float32":
        raise LeftOutError(f"it is given no {case.dtype}")
    kind = tvm.target.Target("cuda" if case.gpu else "llvm")
    try:
        with kind:
            module = tvm.compile(from_onnx(case.model), kind)
    except Exception as error:
        raise LeftOutError(
            f"it cannot compile it: {str(error).splitlines()[-1]}"
        ) from error
    machine = relax.VirtualMachine(module, device)
    given = [tvm.runtime.tensor(a, device) for a in case.arrays]
    result, timed = _timed(
        partial(machine["main"], *given), lambda _: device.sync(), case.gpu
    )
    return result.numpy(), timed


def flash_attention(case: PeerCase) -> Prepared:
    """FlashAttention's own kernels: of 16 bits, heads behind the places."""
    if not case.name.startswith("attention"):
        raise LeftOutError("it computes attention only")
    if case.dtype == "float32":
        raise LeftOutError("it computes in 16 bits only")
    _need("flash_attn", "flash-attn")
    if not case.gpu:
        raise LeftOutError("it needs a GPU")
    from flash_attn import flash_attn_func

    def peer(_: Any, *given: Any) -> Any:
        return flash_attn_func(*(x.transpose(1, 2) for x in given)).transpose(1, 2)

    return torch(PeerCase(**{**vars(case), "peer": peer}))


PEERS: Final[Mapping[str, Prepare]] = {
    "torch": torch,
    "torch.compile": partial(torch, compiles=True),
    "XLA": xla,
    "TVM": tvm,
    "FlashAttention": flash_attention,
}
