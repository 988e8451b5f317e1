"""The substitutions that were found by enumeration, read from `found.txt`.

`python -m benchmarks.substitutions` writes that file: each line holds a name, an equation and its
labels. The label `matrices` says that all tensors are matrices, `alike` that all have one shape.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from tilewright.base.errors import InputError
from tilewright.graph.rules.patterns import (
    Apply,
    Tensor,
    onnx,
    parts,
)
from tilewright.graph.rules.rule import Rule
from tilewright.graph.rules.substitutions.drawing import (
    RandomGraph,
)
from tilewright.graph.rules.substitutions.products import (
    matrices,
    one_shape,
)
from tilewright.graph.rules.substitutions.rows import typed

_OPERATORS: Mapping[type, str] = {
    ast.Add: "Add",
    ast.Sub: "Sub",
    ast.Mult: "Mul",
    ast.Div: "Div",
    ast.MatMult: "MatMul",
}
LABELS = ("exact", "finite", "real", "matrices", "alike")


@cache
def found() -> tuple[Rule, ...]:
    """The rules of the file, in its order."""
    text = files(__package__).joinpath("found.txt").read_text()
    lines = [line for line in text.splitlines() if line and line[0] != "#"]
    return tuple(map(parsed, lines))


def parsed(line: str) -> Rule:
    """A rule from `name: left => right  # labels`. Raises InputError for anything else."""
    sides, _, comment = line.partition("#")
    name, colon, equation = sides.partition(":")
    left, arrow, right = equation.partition("=>")
    labels = comment.split()
    unknown = [word for word in labels if word not in LABELS]
    if not colon or not arrow or unknown:
        raise InputError(
            f"{line!r} is not a rule",
            code="TW-RULE",
            hint=f"Write: name: left => right  # labels, of {', '.join(LABELS)}",
        )
    names: dict[str, Tensor] = {}
    real = "real" in labels
    pattern = _formula(
        ast.parse(left.strip(), mode="eval").body,
        names,
        real,
    )
    replacement = _formula(
        ast.parse(right.strip(), mode="eval").body,
        names,
        real,
    )
    return made(name.strip(), pattern, replacement, labels)


def made(name: str, left: Any, right: Any, labels: list[str]) -> Rule:
    """A rule with labels: `exact`, `finite`, and `matrices` for the condition that all are."""
    tensors = dict.fromkeys(p for p in parts(left) if isinstance(p, Tensor))
    square = "matrices" in labels
    joins = any(isinstance(p, Apply) and "Concat" in str(p) for p in parts(left))
    samples = None
    if square:
        samples = typed(_matrices(left, tensors))
    elif joins:
        samples = typed(_joined(tensors))
    when = [matrices(*tensors)] if square else []
    if "alike" in labels:
        when.append(one_shape(*tensors))
    return Rule(
        name,
        left,
        right,
        when,
        exact="exact" in labels,
        finite="finite" in labels,
        samples=samples,
    )


def _joined(tensors: Mapping[Tensor, None]) -> Any:
    """Tensors whose extents along one axis differ: joins of them may fit where they do not."""

    def draw_shapes(draw: RandomGraph) -> dict[Any, Any]:
        rest = [draw.extent(0, 3) for _ in range(draw.one_of(2, 2, 3))]
        axis = draw.one_of(0, 1)
        if draw.maybe():
            return dict.fromkeys(tensors, tuple(rest))
        choices = (0, 1, 1, 2, 3)
        return {
            t: (*rest[:axis], draw.one_of(*choices), *rest[axis + 1 :]) for t in tensors
        }

    return draw_shapes


def _matrices(left: Apply, tensors: Mapping[Tensor, None]) -> Any:
    """Matrices of a few extents that often fit, occasionally tensors of another rank."""

    def draw_shapes(draw: RandomGraph) -> dict[Any, Any]:
        extents = (2, draw.one_of(1, 2, 3))
        shapes = {
            t: (
                draw.one_of(*extents),
                draw.one_of(*extents),
            )
            for t in tensors
        }
        if draw.maybe(0.3):
            odd = draw.one_of(*tensors)
            shapes[odd] = draw.one_of((2,), (2, 2, 2), ())
        if draw.maybe(0.4):
            shapes = dict.fromkeys(tensors, (2,) * draw.one_of(1, 2, 2, 3))
        return shapes

    return draw_shapes


def _formula(node: ast.expr, names: dict[str, Tensor], real: bool) -> Any:
    """A pattern from the Python syntax tree of its text."""
    match node:
        case ast.Name(id=name):
            return names.setdefault(name, Tensor(name, real=real))
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.UnaryOp(
            op=ast.USub(),
            operand=ast.Constant(value=number),
        ):
            return -number  # type: ignore[operator]
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
            operator = getattr(onnx, _OPERATORS[type(sign)])
            sides = (_formula(side, names, real) for side in (left, right))
            return operator(*sides)
        case ast.Call(
            func=ast.Name(id=name),
            args=operands,
            keywords=keywords,
        ):
            given = {str(k.arg): ast.literal_eval(k.value) for k in keywords}
            applied = (_formula(operand, names, real) for operand in operands)
            return getattr(onnx, name)(*applied, **given)
    raise InputError(
        f"{ast.unparse(node)!r} is not part of a formula",
        code="TW-RULE",
        hint="Write operators applied to names and numbers: Relu(a @ b) + c",
    )
