"""Results in the memory of an input: a key-value cache, the parameters of a training step.

Precondition for a result r in the memory of an input a: they have the same shape and dtype; exactly
one kernel writes r; nothing reads a after that kernel; and the kernel itself does not read a, or
may overwrite a with its last result (`overwritable`). Then r has the same contents as in separate
memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.base.errors import InputError, UnsupportedError
from tilewright.base.text import listing
from tilewright.driver.built import BuiltGroup, BuiltStep
from tilewright.expr.nodes import Buffer
from tilewright.graph.nodes import Graph, Value
from tilewright.loops.passes.in_place import without_self_copy
from tilewright.plan.nodes import Plan
from tilewright.plan.normalize import KernelSignature, of_kernel

Aliases = Mapping[Buffer, Buffer]


def aliased_buffers(plan: Plan, aliases: Mapping[str, str]) -> dict[Buffer, Buffer]:
    """The input buffer for each result buffer, from names. Raises InputError for invalid pairs."""
    found = {}
    for output, given in aliases.items():
        out = _named(plan.graph.outputs, output, "output")
        source = _named(plan.graph.inputs, given, "input")
        ends = [plan.buffers.get(v) for v in (out, source)]
        where = f"aliases, {output!r} in {given!r}"
        result, memory = ends
        _check_ends(plan.graph, out, source, where)
        if result is None or memory is None or _type(result) != _type(memory):
            raise InputError(
                f"their types differ: {out.type_text} and {source.type_text}",
                where=where,
            )
        found[result] = memory
    return found


def _named(values: Sequence[Value], name: str, kind: str) -> Value:
    for v in values:
        if v.name == name:
            return v
    have = listing([repr(v.name) for v in values])
    raise InputError(f"aliases: no {kind} is called {name!r}", hint=f"there are {have}")


def _type(b: Buffer) -> tuple[object, ...]:
    return b.shape, b.dtype


def _check_ends(graph: Graph, out: Value, source: Value, where: str) -> None:
    """Raise InputError if the output is also an input or constant, or the input also an output."""
    if out in graph.inputs or out in graph.constants:
        raise InputError("the output is itself an input or constant", where=where)
    if source in graph.outputs:
        raise InputError("the input is itself an output", where=where)


def in_place(signature: KernelSignature, aliases: Aliases) -> KernelSignature:
    """Remove from a given Kernel the copy of the input whose memory its result takes."""
    if signature.kernel is None:
        return signature
    kernel = signature.on_values
    if len(kernel.outputs) != 1 or kernel.outputs[0] not in aliases:
        return signature
    made = without_self_copy(kernel, aliases[kernel.outputs[0]])
    if made is None:
        return signature
    return of_kernel(made, signature.group)


def check_aliases(plan: Plan, steps: Sequence[BuiltStep], aliases: Aliases) -> None:
    """Raise UnsupportedError if the precondition in the module's docstring does not hold."""
    for result, source in aliases.items():
        why = _conflict(plan, steps, result, source)
        if why:
            raise UnsupportedError(
                f"{result.name!r} cannot live in the memory of {source.name!r}: {why}",
                where=f"graph {plan.graph.name!r}, aliases",
                hint="leave this pair out: the output then has its own memory",
            )


def _conflict(
    plan: Plan,
    steps: Sequence[BuiltStep],
    result: Buffer,
    source: Buffer,
) -> str:
    """Why the precondition does not hold; empty if it does."""
    writers = [n for n, s in enumerate(plan.steps) if result in s.writes]
    made = steps[writers[0]] if len(writers) == 1 else None
    if not isinstance(made, BuiltGroup):
        return "it is not written by exactly one kernel on the host"
    (at,) = writers
    later = [s.name for s in plan.steps[at + 1 :] if source in s.reads]
    if later:
        return f"{later[0]} reads {source.name!r} after {made.stage.name} has overwritten it"
    last = made.signature.values[-1] is result
    if source in made.signature.values and not (last and source in made.over):
        return (
            f"{made.stage.name} reads elements of {source.name!r} other than the one it "
            "writes, or writes an element twice"
        )
    return ""
