"""The types that a graph declares of its tensors, beside those that they have.

As in ONNX Runtime: a result of another element type, or a sequence instead of a tensor, is an
error, and so is an initializer that differs from the input whose default it is. Another shape of a
result is reported, and the inferred one holds; so is another type of an input or an initializer
that the graph hands out unchanged. A shape without axes is not: it is what exporters and quantizers
write where they do not know the rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tilewright.base.errors import ModelError
from tilewright.frontends.onnx.protos import value_from_onnx
from tilewright.graph.nodes import Shape, Value


def check_results(
    proto: Any, values: Mapping[str, Value | None], report: Callable[[str], None]
) -> None:
    """Compare the outputs and the value_info of a GraphProto with the values of those names.

    report: told of each difference that is no error. Raises ModelError naming the tensor.
    """
    given = {info.name for info in proto.input} | {t.name for t in proto.initializer}
    for info in {i.name: i for i in (*proto.value_info, *proto.output)}.values():
        found = values.get(info.name)
        if found is None or found.dtype is None:
            continue
        said = value_from_onnx(info.name, info.type, negative=True)
        if said.dtype is None:
            continue
        is_other = (said.dtype, said.kind) != (found.dtype, found.kind)
        if is_other and info.name not in given:
            raise ModelError(
                f"it is declared as {said.type_text}, but its node computes {found.type_text}",
                where=f"tensor {info.name!r}",
                hint="Correct the declaration, or put a Cast before it",
            )
        if is_other or (said.shape and not _agree(said.shape, found.shape)):
            report(
                f"{info.name!r} is declared as {said.type_text}, but is {found.type_text}"
            )


def names_of_extents(infos: Iterable[Any]) -> dict[str, tuple[str | None, ...]]:
    """The names that ValueInfoProtos give extents, by tensor; those without any are left out."""
    found = {
        i.name: [d.dim_param or None for d in i.type.tensor_type.shape.dim]
        for i in infos
    }
    return {name: tuple(axes) for name, axes in found.items() if any(axes)}


def check_default(info: Any, found: Value, where: str) -> None:
    """Raise ModelError if an initializer, `found`, differs from the input whose default it is."""
    said = value_from_onnx(info.name, info.type)
    is_other = (said.dtype, said.kind) != (found.dtype, found.kind)
    if said.dtype is None or not (is_other or not _agree(said.shape, found.shape)):
        return
    raise ModelError(
        f"its default is {found.type_text}, the input is declared as {said.type_text}",
        where=where,
        hint="Export the model again",
    )


def _agree(said: Shape | None, found: Shape | None) -> bool:
    """Whether a tensor may have both shapes: a symbolic extent may be any number."""
    if said is None or found is None:
        return True
    return len(said) == len(found) and all(
        a == b or not (isinstance(a, int) and isinstance(b, int))
        for a, b in zip(said, found, strict=True)
    )
