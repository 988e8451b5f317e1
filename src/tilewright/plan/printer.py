"""Printing plans: the buffers and their places, then the steps with their Computations.

    plan mlp:
      input x: float32[48, 64]
      constant w: float32[64, 32]
      output y: float32[48, 32]
      buffer t: float32[48, 32] at 0  # steps 0 to 1
      group matmul, 196608 flops, from "MatMul -> t":  # step 0
        matmul(i < 48, j < 32, k < 64) =
          ...
      copy y_vta -> y  # step 2
      loop "l" below trips while going; carries x_0 as x; takes w; counts n; stacks ys:  # step 3
        plan body:
          ...
      branch "b" on c; takes x; gives y:  # step 4
        plan then: ...
        plan other: ...

An open plan begins with its sizes: `size n in 1 to 64 from x[0]`, or `from count`, a buffer.
`, counted at 8` adds the value where the flops of its groups were counted.
`plan/parser.py` reads it back. Omitted parts have defaults: on the host, and in a buffer with the
value's name. Contents of constants and attributes of host fallbacks are in the graph.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace

from tilewright.compute.printer import show as show_computation
from tilewright.compute.printer import show_reducer
from tilewright.expr.nodes import Buffer
from tilewright.graph.nodes import Value
from tilewright.graph.printer import show_operation
from tilewright.loops.printer import show_buffer, show_kernel
from tilewright.plan.lifetimes import lifetimes
from tilewright.plan.naming import named, operators
from tilewright.plan.nodes import (
    HOST,
    Branch,
    DeviceCall,
    DeviceCopy,
    FusionGroup,
    HostFallback,
    Loop,
    Plan,
    Step,
)

_INDENT = "  "


def show(plan: Plan) -> str:
    """The plan: one line per buffer and group, with Computations below their groups."""
    return "\n".join(_lines(named(plan)))


def word(text: str) -> str:
    """A name unchanged, or in quotes if it is not an identifier."""
    plain = re.fullmatch(r"[^\W\d][\w.]*", text) is not None and text not in (
        "none",
        "_",
    )
    return text if plain else json.dumps(text)


def _lines(plan: Plan) -> Iterator[str]:
    memory = plan.memory
    arenas = "" if memory is None else f", arena of {memory.total} bytes"
    if memory is not None:
        for device, total in memory.elsewhere.items():
            arenas += f", {total} bytes on {word(device)}"
    yield f"plan {word(plan.graph.name)}{arenas}:"
    body = (*_sizes(plan), *_values(plan), *_buffers(plan))
    reducers = (f"reducer {show_reducer(op)}" for op in operators(plan))
    for line in (*body, *reducers):
        yield _INDENT + line
    for number, step in enumerate(plan.steps):
        for line in _step(plan, step, number):
            yield _INDENT + line


def _sizes(plan: Plan) -> Iterator[str]:
    for e in plan.open:
        if isinstance(e.source, Buffer):
            source = e.source.name
        else:
            value, axis = e.source
            source = f"{word(value.name)}[{axis}]"
        counted = "" if e.counted is None else f", counted at {e.counted}"
        yield f"size {e.size.name} in {e.least} to {e.most} from {source}{counted}"


def _values(plan: Plan) -> Iterator[str]:
    graph = plan.graph
    ends = {*graph.inputs, *graph.constants, *graph.outputs}
    roles = (
        ("input", graph.inputs),
        ("constant", tuple(graph.constants)),
        ("output", graph.outputs),
        ("value", tuple(v for v in plan.named_values if v not in ends)),
    )
    lives = lifetimes(plan)
    for role, values in roles:
        for v in values:
            used = (
                lives.get(plan.buffers[v])
                if role == "value" and v in plan.buffers
                else None
            )
            note = "" if used is None else _used(*used)
            yield f"{role} {word(v.name)}: {_type(_sized(plan, v))}{_where(plan, v)}{note}"


def _sized(plan: Plan, v: Value) -> Value:
    """The value with the extents of its buffer, if these are expressions of sizes."""
    b = plan.buffers.get(v)
    if b is None or b.static or v.shape is None:
        return v
    shape = (e if isinstance(e, int) else str(e) for e in b.extents)
    return replace(v, shape=tuple(shape))


def _type(v: Value) -> str:
    """As `Value.type_text`, with names of extents as words."""
    if v.dtype is None:
        element = "?"
    else:
        element = v.dtype.name
    if v.shape is None:
        dims = ""
    else:
        dims = ", ".join(map(_dim, v.shape))
    text = element if v.shape is None else f"{element}[{dims}]"
    for part in reversed(v.kind.split(".")):
        text = text if part == "tensor" else f"{part}({text})"
    return text


def _dim(d: int | str | None) -> str:
    if d is None:
        return "?"
    if isinstance(d, str):
        return word(d)
    return str(d)


def _where(plan: Plan, v: Value) -> str:
    """The buffer of a value, if it has another name, and its place."""
    b = plan.buffers.get(v)
    if b is None:
        return " in none"
    return ("" if b.name == word(v.name) else f" in {b.name}") + _lies(plan, b)


def _lies(plan: Plan, b: Buffer) -> str:
    """The device of a buffer, and its place there."""
    places = {} if plan.memory is None else plan.memory.places
    return _device(plan.device_of(b)) + (f" at {places[b]}" if b in places else "")


def _device(device: str) -> str:
    return "" if device == HOST else f" on {word(device)}"


def _buffers(plan: Plan) -> Iterator[str]:
    """The buffers between steps, with the first and last step that uses each."""
    declared = {plan.buffers[v] for v in plan.named_values if v in plan.buffers}
    for b, used in lifetimes(plan).items():
        if b not in declared:
            yield f"buffer {show_buffer(b)}{_lies(plan, b)}{_used(*used)}"


def _used(first: int, last: int) -> str:
    return f"  # steps {first} to {last}"


def _step(plan: Plan, step: Step, number: int) -> Iterator[str]:
    match step:
        case HostFallback():
            yield from _host(step)
        case DeviceCall():
            reads, writes = (
                ", ".join(b.name for b in e) for e in (step.reads, step.writes)
            )
            what = f"{word(step.operation.qualified)}({reads}) -> {writes}"
            yield f"call {what}{_device(step.device)}, from {word(step.name)}  # step {number}"
        case DeviceCopy():
            yield f"copy {step.source.name} -> {step.target.name}  # step {number}"
        case FusionGroup():
            yield from _group(plan, step, number)
        case Loop() | Branch():
            yield from _control(plan, step, number)


def _control(plan: Plan, step: Loop | Branch, number: int) -> Iterator[str]:
    if isinstance(step, Loop):
        pairs = zip(step.initial, step.states, strict=True)
        carried = ", ".join(f"{a.name} as {b.name}" for a, b in pairs)
        head = f"loop {word(step.name)} below {step.trips.name} while {step.going.name}"
        parts = [
            ("carries", carried),
            ("takes", _listed(step.taken)),
            ("counts", step.count.name),
            ("stacks", _listed(step.stacked)),
        ]
    else:
        head = f"branch {word(step.name)} on {step.condition.name}"
        parts = [("takes", _listed(step.taken)), ("gives", _listed(step.results))]
    inside = {} if plan.memory is None else plan.memory.inside
    at = f"; at {inside[step]}" if step in inside else ""
    facts = "".join(f"; {verb} {what}" for verb, what in parts if what)
    yield f"{head}{facts}{at}:  # step {number}"
    for body in step.bodies:
        for line in show(body).split("\n"):
            yield _INDENT + line


def _listed(buffers: tuple[Buffer, ...]) -> str:
    return ", ".join(b.name for b in buffers)


def _host(call: HostFallback) -> Iterator[str]:
    op = call.operation
    reads, writes = (
        ", ".join("_" if v is None else word(v.name) for v in values)
        for values in (op.inputs, op.outputs)
    )
    note = " ".join(show_operation(op).split())
    yield f"host {word(op.qualified)}({reads}) -> {writes}  # {note}"


def _group(plan: Plan, group: FusionGroup, number: int) -> Iterator[str]:
    over = () if plan.memory is None else plan.memory.over.get(group, ())
    facts = [
        f", {group.flops} flop{'s' * (group.flops > 1)}" * bool(group.flops),
        f", over {' '.join(b.name for b in over)}" * bool(over),
        f", from {', '.join(map(json.dumps, group.sources))}" * bool(group.sources),
    ]
    yield f"group {word(group.name)}{_device(group.device)}{''.join(facts)}:  # step {number}"
    if group.kernel is not None:
        texts = [show_kernel(group.kernel)]
    else:
        inner = [b for b in group.writes if b not in plan.live[group]]
        texts = [f"local {show_buffer(b)}{_device(plan.device_of(b))}" for b in inner]
        texts += map(show_computation, group.computations)
    for text in texts:
        for line in text.split("\n"):
            yield _INDENT + line
