"""Networks of the zoo as files, for `benchmarks.commits --models` and other tools."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks import harness, zoo_checks


def export(module: nn.Module, inputs: zoo_checks.Inputs, path: Path) -> None:
    """Write the network as one ONNX file, and as a program of PyTorch beside it (.pt2)."""
    program = torch.export.export(_Leaves(module), (), dict(inputs))
    torch.export.save(program, path.with_suffix(".pt2"))
    torch.onnx.export(
        program,
        (),
        path,
        kwargs=dict(inputs),
        input_names=list(inputs),
        dynamo=True,
        verbose=False,
        external_data=False,
    )


def written(module: nn.Module, inputs: zoo_checks.Inputs, path: Path) -> zoo_checks.Row:
    """Write the network, its inputs and its results in float64."""
    path.parent.mkdir(parents=True, exist_ok=True)
    export(module, inputs, path)
    right = zoo_checks.in_double(module, inputs)
    arrays = {f"in.{name}": x.numpy() for name, x in inputs.items()}
    arrays |= {f"out.{i}": y.numpy() for i, y in enumerate(right)}
    np.savez(harness.inputs_of(path), **arrays)
    return {"status": "ok"}


class _Leaves(nn.Module):
    """A network whose results are the tensors of another, called by names."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, **inputs: torch.Tensor) -> list[torch.Tensor]:
        return zoo_checks.leaves(zoo_checks.called(self.module, inputs))
