"""The content of a report on a model, as plain data: from events, records, IRs and a profile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from tilewright import __version__
from tilewright.base import events
from tilewright.base.errors import TilewrightError
from tilewright.base.text import listing
from tilewright.compute.nodes import Computation
from tilewright.driver.explain import ExplainedKernel, ExplainedModel
from tilewright.driver.schedule_records import PARTS, ScheduleRecord
from tilewright.graph.nodes import Graph, Operation
from tilewright.lang import lift, mdh, te
from tilewright.plan.lifetimes import lifetimes
from tilewright.plan.nodes import HOST, Plan
from tilewright.plan.passes.memory import in_arena
from tilewright.runtime.executable import Executable
from tilewright.runtime.machine import processor_name
from tilewright.runtime.profile import KernelTime, Profile
from tilewright.schedule.trace import apply
from tilewright.targets.llvm.listing import loops_of_lines

FORMAT: Final = 1
NOTATIONS: Final[Mapping[str, Callable[[Computation], str]]] = {
    "computation": lambda c: str(c),
    "te": te.show,
    "mdh": mdh.show,
    "lift": lift.show,
}
_MOST_CODE: Final = 1500  # lines of assembler text that are shown of a kernel
_MOST_STEPS: Final = 120  # steps of a trace
# Kernels whose alternatives are tried: the ones that take most of the time.
_SLOWEST: Final = 12

Facts = dict[str, Any]


def facts(
    name: str,
    made: ExplainedModel,
    exe: Executable,
    profile: Profile,
    compile_seconds: float,
    peaks: tuple[float, float] | None = None,
) -> Facts:
    """All data of a report, in a form that JSON can hold.

    compile_seconds: of the compilation. peaks: the machine's GFLOP/s and GB/s, if they were
    measured.
    """
    return {
        "format": FORMAT,
        "tilewright": __version__,
        "model": name,
        "time": time.strftime("%Y-%m-%d %H:%M"),
        "machine": {
            "processor": processor_name(),
            "threads": profile.threads,
            "gflops": peaks[0] if peaks else None,
            "gbs": peaks[1] if peaks else None,
        },
        "summary": _summary(made.plan, exe, profile, compile_seconds),
        "graphs": {"before": graph(made.before), "after": graph(made.after)},
        "rewrites": list(_rewrites(made.log)),
        "passes": [
            {**_named(e, "pipeline", "name", "changed"), "seconds": e.elapsed}
            for e in made.log
            if e.kind == "pass"
        ],
        "memory": memory(made.plan),
        "kernels": list(_kernels(made, profile)),
    }


def _summary(
    plan: Plan, exe: Executable, profile: Profile, compile_seconds: float
) -> Facts:
    inside = sum(r.seconds for r in profile.rows)
    return {
        "seconds": profile.total,
        "kernel_seconds": inside,
        "between_seconds": max(0.0, profile.total - inside),
        "runs": profile.repeat,
        "peak_bytes": exe.peak_bytes,
        "constant_bytes": sum(a.nbytes for a in plan.data.values()),
        "arena_bytes": plan.memory.total if plan.memory else 0,
        "compile_seconds": compile_seconds,
        "flops": sum(r.flops for r in profile.rows),
        "inputs": [str(v) for v in exe.inputs],
        "outputs": [str(v) for v in exe.made],
    }


def graph(g: Graph) -> Facts:
    """Nodes with their operator, types and weights, and edges between them with their tensors."""
    ends = [("input", v.name, v.type_text, v) for v in g.inputs]
    nodes: list[Facts] = [
        {"name": name, "op": kind, "types": [type], "weights": [], "attributes": {}}
        for kind, name, type, _ in ends
    ]
    maker = {v: n for n, (*_, v) in enumerate(ends)}
    edges: list[tuple[int, int, str]] = []
    for op in g.operations:
        known = [v for v in op.reads if v in g.constants]
        nodes.append(_node(op, [f"{v.name}: {v.type_text}" for v in known]))
        here = len(nodes) - 1
        edges += [(maker[v], here, str(v)) for v in op.reads if v in maker]
        maker |= dict.fromkeys(op.writes, here)
    for v, shown in zip(g.outputs, g.shown_outputs, strict=True):
        nodes.append(
            {
                "name": v.name,
                "op": "output",
                "types": [shown.type_text],
                "weights": [],
                "attributes": {},
            }
        )
        if v in maker:
            edges.append((maker[v], len(nodes) - 1, str(v)))
    return {"nodes": nodes, "edges": edges}


def _node(op: Operation, weights: Sequence[str]) -> Facts:
    shown = {
        k: v
        for k, v in op.attributes.items()
        if isinstance(v, str | int | float | list)
    }
    return {
        "name": op.label,
        "op": op.qualified,
        "types": [v.type_text for v in op.writes],
        "weights": list(weights),
        "attributes": {k: str(v)[:80] for k, v in shown.items()},
    }


# What was rewritten, by the kind of event: how it is called, where, and why.
_WHY: Final[Mapping[str, Callable[[Mapping[str, Any]], tuple[str, str, str]]]] = {
    "rule": lambda f: (
        f["rule"],
        f["node"],
        "the rule matches: an equal form that costs less",
    ),
    "fold": lambda f: ("fold", f["node"], "all its operands are constants"),
    "weight-only": lambda f: (
        "weight-only",
        f["node"],
        f"largest error {f['error']:.2g}",
    ),
    "fuse": lambda f: (
        f"fuse ({_rule(f)})",
        f["producer"],
        f"into {_into(f)}: its result stays in registers or caches",
    ),
    "not-fused": lambda f: (
        f"not fused ({_rule(f)})",
        f["producer"],
        f"not into {_into(f)}: {f['reason']}",
    ),
    "padded": lambda f: (
        "halo",
        f["tensor"],
        "stored with its padding: readers need no test",
    ),
    "placed": lambda f: (
        "concat in place",
        f["tensor"],
        f"written into {f['inside']} directly: no copy",
    ),
    "winograd": lambda f: (
        "winograd",
        f["stage"],
        f"fewer products, by tiles of {f['tile']}",
    ),
    "separated": lambda f: (
        "separable window",
        f["stage"],
        "rows, then columns: fewer steps",
    ),
    "split-sum": lambda f: (
        "split sum",
        f["stage"],
        f"{f['parts']} parts run in parallel",
    ),
    "split-window": lambda f: (
        "split window",
        f["stage"],
        f"{f['parts']} positions apart, without products of padding",
    ),
    "recompute": lambda f: (
        "recompute",
        f["tensor"],
        f"needs no memory until {f['before']}",
    ),
    "weights-last": lambda f: (
        "weights channels last",
        f["tensor"],
        f"{listing(list(f['readers']))} reads them along channels",
    ),
    "streamed-attention": lambda f: (
        "stream attention",
        f["stage"],
        f"blocks of {f['keys']} keys: scores are never in memory",
    ),
    "units": lambda f: ("by units", f["kernel"], PARTS["units"](f)),
    "positions": lambda f: ("by positions", f["kernel"], PARTS["positions"](f)),
    "rows": lambda f: ("by rows", f["kernel"], PARTS["rows"](f)),
    "not-parted": lambda f: (f"not by {f['by']}", f["kernel"], f["reason"]),
    "range-apart": lambda f: (
        f"{f['codes']} codes that share none",
        f["graph"],
        f["reason"],
    ),
    "kept-whole": lambda f: ("kept whole", f["kernel"], f["reason"]),
    "kept-apart": lambda f: (
        f"not {f['count']} at a time",
        f["kernel"],
        f["reason"],
    ),
}


# These say what stayed as it was, and why.
_LEFT: Final = frozenset({"not-fused", "not-parted", "kept-whole", "kept-apart"})


def _rule(f: Mapping[str, Any]) -> str:
    return str(f["rule"]).strip("_").replace("_", " ")


def _into(f: Mapping[str, Any]) -> str:
    into = f["into"]
    return into if isinstance(into, str) else listing(list(into))


def _rewrites(log: Sequence[events.Event]) -> Iterator[Facts]:
    """Each rewrite, in order, with the pass that it happened in; those left out are not `taken`.

    The event of a pass comes at its end, so its rewrites wait until then.
    """
    waiting: list[Facts] = []
    for event in log:
        if event.kind in _WHY:
            what, where, why = _WHY[event.kind](event.fields)
            taken = event.kind not in _LEFT
            waiting.append({"what": what, "where": where, "why": why, "taken": taken})
        elif event.kind == "pass":
            yield from ({"pass": event.fields["name"], **found} for found in waiting)
            waiting.clear()
    yield from ({"pass": "", **found} for found in waiting)


def _named(event: events.Event, *names: str) -> Facts:
    return {name: event.fields.get(name) for name in names}


def memory(plan: Plan) -> Facts:
    """The host's arena over the steps: each buffer with its place and the steps that need it."""
    if plan.memory is None:
        return {"steps": [], "bytes": 0, "buffers": []}
    buffers = [
        {
            "name": b.name,
            "type": f"{b.dtype}[{', '.join(map(str, b.shape))}]",
            "bytes": b.size * b.dtype.itemsize,
            "offset": plan.memory.places[b],
            "first": first,
            "last": last,
        }
        for b, (first, last) in lifetimes(plan).items()
        if in_arena(plan, b) and plan.device_of(b) == HOST and b in plan.memory.places
    ]
    steps = [s.name for s in plan.steps]
    return {"steps": steps, "bytes": plan.memory.total, "buffers": buffers}


def _kernels(made: ExplainedModel, profile: Profile) -> Iterator[Facts]:
    """The rows of the profile, each with the origin of its kernel."""
    waiting: dict[str, list[ExplainedKernel]] = {}
    for kernel in made.kernels:
        waiting.setdefault(kernel.group.name, []).append(kernel)
    types = {
        op.label: op.qualified for g in (made.after, made.before) for op in g.operations
    }
    shared = {r.kernel: r for r in made.shared}
    slowest = sorted(profile.rows, key=lambda r: -r.seconds)[:_SLOWEST]
    for row in profile.rows:
        found = {**_row(row), "operators": [[n, types.get(n, "")] for n in row.nodes]}
        if row.kind == "native" and waiting.get(row.name):
            found |= _details(waiting[row.name].pop(0), row in slowest)
        elif row.name in shared:
            found |= _shared(shared[row.name])
        events.emit("explained", name=row.name, total=len(profile.rows))
        yield found


def _row(row: KernelTime) -> Facts:
    return {
        "name": row.name,
        "kind": row.kind,
        "seconds": row.seconds,
        "start": row.start,
        "share": row.share,
        "flops": row.flops,
        "bytes": row.bytes,
        "gflops": row.gflops,
        "gbs": row.gbs,
        "peak_share": row.peak_share,
        "mix": asdict(row.mix) if row.mix else None,
    }


def _shared(record: ScheduleRecord) -> Facts:
    """A kernel of code for ranges of sizes: what it computes at a time, and why."""
    refused = list(record.refused)
    how = {"sketch": record.sketch, "parts": list(record.parts), "refused": refused}
    return {**how, "tuned": None}


def _details(kernel: ExplainedKernel, slow: bool) -> Facts:
    record = kernel.record
    final = kernel.finished
    code = loops_of_lines(kernel.code(final))
    tried = kernel.alternatives() if slow else []
    tuned = record.tuned
    return {
        "notations": _notations(kernel.group.computations),
        "sketch": record.sketch,
        "parameters": [
            [p.name, str(p.value), str(p.default), len(p.candidates)]
            for p in record.parameters
        ],
        "refused": list(record.refused),
        "fused": list(record.fused),
        "tuned": None if tuned is None else {**asdict(tuned), "gain": tuned.gain},
        "alternatives": [asdict(a) for a in tried],
        **_loops(kernel, str(final)),
        "code": [[line, loop] for line, loop in code[:_MOST_CODE]],
        "code_lines": len(code),
    }


def _notations(computations: Sequence[Computation]) -> dict[str, list[str]]:
    """Each Computation in each notation, or the reason why it has no form in it."""
    return {
        name: [_shown(show, c) for c in computations]
        for name, show in NOTATIONS.items()
    }


def _shown(show: Callable[[Computation], str], c: Computation) -> str:
    try:
        return show(c)
    except TilewrightError as error:
        return f"# no form in this notation: {error.message}"


def _loops(kernel: ExplainedKernel, final: str) -> Facts:
    """The loops after each primitive, as numbers of lines in a list of distinct ones."""
    lines: dict[str, int] = {}

    def numbers(text: str) -> list[int]:
        return [lines.setdefault(line, len(lines)) for line in text.splitlines()]

    now = kernel.plain
    steps: list[Facts] = [{"step": "the plain loops", "lines": numbers(str(now))}]
    for step in kernel.record.trace.steps[:_MOST_STEPS]:
        now, _ = apply(now, step)
        steps.append({"step": f"s.{step}", "lines": numbers(str(now))})
    if final != str(now):
        said = "work on constants is done when the model is compiled"
        steps.append({"step": said, "lines": numbers(final)})
    return {"lines": list(lines), "steps": steps}
