"""PyTorch modules in, through torch.export and ONNX in memory."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tilewright.base.errors import InputError, ModelError


def is_module(source: object) -> bool:
    """Whether `source` is a `torch.nn.Module` or an exported program; torch is not imported."""
    kinds = {f"{c.__module__}.{c.__qualname__}" for c in type(source).__mro__}
    return bool(
        kinds & {"torch.nn.modules.module.Module", "torch.export.exported_program.ExportedProgram"}
    )


def to_onnx(module: Any, example_inputs: Sequence[Any]) -> bytes:
    """The ONNX model (serialised) of `module` traced on `example_inputs`.

    Raises InputError without example inputs, ModelError if PyTorch cannot export the module.
    """
    import torch

    if not example_inputs:
        raise InputError(
            "a PyTorch module needs example inputs to be traced on",
            where=type(module).__name__,
            hint="call tw.compile(module, (example,))",
        )
    if isinstance(module, torch.nn.Module):
        module = module.eval()
    buffer = io.BytesIO()
    with warnings.catch_warnings(), _quiet(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            program = torch.onnx.export(
                module, tuple(example_inputs), dynamo=True, verbose=False, external_data=False
            )
        except Exception as error:
            reason = str(error).strip().splitlines()
            raise ModelError(
                f"PyTorch cannot export the module: {reason[0] if reason else error!r}",
                where=type(module).__name__,
                hint="make torch.export.export(module, inputs) succeed first",
            ) from error
        program.save(buffer)
    return buffer.getvalue()


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torchvision the exporter logs a line for each operator of it, which nobody asked."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
