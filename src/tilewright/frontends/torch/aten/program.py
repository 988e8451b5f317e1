"""`torch.export` programs: their signature, and rewriting their operators to those with rules.

A program is imported as `torch.export` wrote it if each of its operators has a rule and none
changes a tensor in place. Otherwise PyTorch rewrites it first: without in-place changes, and with
decompositions of operators that have no rule or whose rule rejects this use.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from tilewright.base.errors import ModelError, UnsupportedError
from tilewright.frontends.torch.aten.builder import AtenBuilder
from tilewright.frontends.torch.aten.decompositions import decompositions
from tilewright.frontends.torch.aten.importer import (
    HINT,
    FxSource,
    ImportSettings,
    RuleRefused,
    has_rule,
    import_graph,
    missing,
    nodes,
    stops_gradients,
    unsupported,
)
from tilewright.frontends.torch.guards import conditions
from tilewright.frontends.torch.trace import quiet, reason
from tilewright.graph.infer import Typer
from tilewright.graph.nodes import ExtentRange, Graph
from tilewright.runtime.conditions import ExtentCondition, multiples

# Code of the error for a module that changes its own state, which no importer can fix.
STATE: Final = "TW-STATE"

_SUPPOSED: Final = 2  # the least extent that PyTorch's tracer supposes of any dimension


def import_program(program: Any, settings: ImportSettings) -> Graph:
    """The Graph of a `torch.export.ExportedProgram`.

    Raises UnsupportedError with every operator that has no rule and that PyTorch does not
    decompose, with the user's line, and for a module that changes its own state (TW-STATE);
    MemoryLimitError for constants or tensors beyond the limit.
    """
    refused: dict[Any, UnsupportedError] = {}
    while True:
        ready = _ready(program, refused, settings.trained)
        try:
            made = import_graph(_source(ready), settings)
            ranges, found = limits_of(program, settings.symbols)
            return replace(made, ranges=ranges, conditions=found)
        except RuleRefused as use:
            if use.target in refused:
                raise use.error from None
            refused[use.target] = use.error


def limits_of(
    program: Any, names: Mapping[str, str]
) -> tuple[dict[str, ExtentRange], tuple[ExtentCondition, ...]]:
    """The ranges and conditions of a program's extents, as a Graph has them.

    names: for PyTorch's symbols, where the graph has others. Raises as `conditions`.
    """
    found = conditions(program, names)
    return _ranges(program, names, found), found


def _ranges(
    program: Any, names: Mapping[str, str], known: Sequence[ExtentCondition]
) -> dict[str, ExtentRange]:
    """The bounds of each extent and what divides it, by the name it has here.

    PyTorch resolves conditions on extents when it traces. Its tracer takes 0 and 1 for usual
    extents though it says 2 or more, and lets them through.
    """
    steps: dict[str, int] = {}
    for name, step in filter(None, map(multiples, known)):
        steps[name] = math.lcm(steps.get(name, 1), step)
    found = {}
    for extent, bounds in program.range_constraints.items():
        if bounds.lower >= 0:
            text = str(extent)
            # Its infinite bound is not a sympy Integer, though it claims to be.
            ends = getattr(bounds.upper, "is_Integer", False)
            most = int(bounds.upper) if ends else None
            name = names.get(text, text)
            least = int(bounds.lower)
            accepted = least if least > _SUPPOSED else 0
            found[name] = ExtentRange(least, most, steps.get(name, 1), accepted)
    return found


def _ready(
    program: Any, refused: Mapping[Any, UnsupportedError], trained: Collection[str]
) -> Any:
    """The program in operators that have rules. Raises UnsupportedError if that is impossible."""
    uses = list(nodes(program.graph_module))
    if not all(has_rule(t) and n.target not in refused for n, t in uses):
        _check_flowing(program, trained)
        program = _decomposed(program, refused)
    absent = missing(program.graph_module)
    if absent and refused:  # what the last refused one was decomposed into
        raise list(refused.values())[-1]
    if absent:
        raise unsupported(absent)
    return program


def _check_flowing(program: Any, trained: Collection[str]) -> None:
    """Raise UnsupportedError if something stops a gradient, which decomposing would lose."""
    specs = program.graph_signature.input_specs
    moving = {s.arg.name for s in specs if s.target in trained}
    for n in program.graph.nodes:
        if moving.isdisjoint(a.name for a in n.all_input_nodes):
            continue
        if stops_gradients(n):
            raise UnsupportedError(
                "it stops a gradient, in a program with operators that PyTorch must decompose",
                where=AtenBuilder(Typer()).place(n),
                hint="train it by torch.compile(model, backend='tilewright')",
            )
        moving.add(n.name)


def _decomposed(program: Any, refused: Mapping[Any, UnsupportedError]) -> Any:
    table = decompositions(refused)
    try:
        with quiet("torch"):
            return program.run_decompositions(table)
    except Exception as error:
        raise ModelError(
            f"PyTorch cannot decompose the program: {reason(error)}",
            hint="program.run_decompositions() says more",
        ) from error


def _source(program: Any) -> FxSource:
    """The meaning of each placeholder, and the names of the outputs."""
    held: dict[str, tuple[Any, str]] = {}
    numbers: dict[str, Any] = {}
    for spec in program.graph_signature.input_specs:
        if spec.kind.name == "USER_INPUT":
            if hasattr(spec.arg, "value"):
                numbers[spec.arg.name] = spec.arg.value
            continue
        tensor = program.state_dict.get(spec.target)
        if tensor is None:
            tensor = program.constants.get(spec.target)
        if not hasattr(tensor, "dtype"):
            raise UnsupportedError(f"{spec.target!r} is not a tensor", hint=HINT)
        held[spec.arg.name] = tensor, str(spec.target)
    return FxSource(program.graph_module, held, numbers, _names(program))


def _names(program: Any) -> list[str]:
    """The names of the outputs. Raises UnsupportedError if the module changes its own state."""
    specs = program.graph_signature.output_specs
    for spec in specs:
        if spec.kind.name != "USER_OUTPUT":
            raise UnsupportedError(
                f"the module changes {spec.target!r} when it is called",
                code=STATE,
                hint="make the state an input, and its new value an output",
            )
    return [path or "" for path in _paths(program, len(specs))]


def _paths(program: Any, count: int) -> Sequence[str]:
    """An output's key in the dictionary that the module returns; otherwise empty."""
    from torch.utils import _pytree as trees

    spec = program.call_spec.out_spec
    if spec is None or spec.num_leaves != count:
        return [""] * count
    found, _ = trees.tree_flatten_with_path(trees.tree_unflatten(range(count), spec))
    return [
        ".".join(
            str(getattr(k, "key", getattr(k, "idx", getattr(k, "name", ""))))
            for k in path
        )
        if any(isinstance(getattr(k, "key", None), str) for k in path)
        else ""
        for path, _ in found
    ]
