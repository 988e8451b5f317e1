"""Float64 references: a benchmark network evaluated operator by operator with torch in double."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch import Tensor

from benchmarks import models
from benchmarks.torch_ops import OPERATORS


def _double(value: np.ndarray) -> Tensor:
    exotic = value.dtype.kind == "V"  # bfloat16, which torch does not take from NumPy
    tensor = torch.from_numpy(value.astype(np.float64) if exotic else np.array(value))
    return tensor.double() if tensor.is_floating_point() else tensor


def evaluate(
    model: onnx.ModelProto, feeds: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Every tensor that the graph computes, floating ones in float64.

    Raises NotImplementedError naming an operator that no benchmark network uses.
    """
    graph = model.graph
    known: dict[str, Tensor | None] = {"": None}
    known |= {i.name: _double(numpy_helper.to_array(i)) for i in graph.initializer}
    known |= {name: _double(value) for name, value in feeds.items()}
    made: dict[str, np.ndarray] = {}
    with torch.inference_mode():
        for node in graph.node:
            if node.op_type not in OPERATORS:
                raise NotImplementedError(
                    f"{node.op_type} ({node.name or node.output[0]})"
                )
            attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            result = OPERATORS[node.op_type](
                [known[name] for name in node.input], attributes
            )
            known[node.output[0]] = result
            made[node.output[0]] = result.numpy()
    return made


def inner_tensors(model: onnx.ModelProto, count: int) -> list[str]:
    """`count` names of computed tensors, spread evenly over the depth of the graph."""
    kinds = {"Add", "Sum", "Relu", "Clip", "Concat", "Gemm", "MatMul", "MaxPool", "Softmax",
             "LayerNormalization"}  # fmt: skip
    outputs = {output.name for output in model.graph.output}
    names = [n.output[0] for n in model.graph.node
             if n.op_type in kinds and n.output[0] not in outputs]  # fmt: skip
    places = np.linspace(0, len(names) - 1, min(count, len(names))).round().astype(int)
    return [names[place] for place in places]


def write(name: str, path: Path, inner: int = 8, seed: int = 0) -> Path:
    """Writes `<name>.ref.npz` next to a model unless it exists and is newer; returns its path.

    It holds `out.<name>` for the graph's outputs and `mid.<name>` for `inner` tensors inside.
    """
    target = path.with_suffix(".ref.npz")
    if target.exists() and target.stat().st_mtime > path.stat().st_mtime:
        return target
    model = onnx.load(path)
    values = evaluate(model, models.inputs(name, seed))
    arrays = {f"out.{o.name}": values[o.name] for o in model.graph.output}
    arrays |= {f"mid.{t}": values[t] for t in inner_tensors(model, inner)}
    np.savez(target, **arrays)  # type: ignore[arg-type]
    return target


def outputs(name: str, path: Path) -> list[np.ndarray]:
    """The graph's outputs in float64, in order."""
    with np.load(write(name, path)) as archive:
        return [archive[key] for key in archive.files if key.startswith("out.")]
