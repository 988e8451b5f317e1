"""The page of a report, from its facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.base.html import Markup, element, join, table
from tilewright.base.text import human_bytes, human_count, human_time, plural
from tilewright.report.explain import charts, difference, graphs
from tilewright.report.shell import page as shell

Facts = Mapping[str, Any]


def page(facts: Facts, before: Facts | None = None) -> str:
    """HTML of the result of `facts.facts`: one self-contained file.

    before: an earlier report's facts (`difference.read`), to compare with.
    """
    kernels, machine = facts["kernels"], facts["machine"]
    total = facts["summary"]["seconds"]
    sections = [
        ("summary", "Summary", _summary(facts)),
        ("time", "Time", _time(kernels, total)),
        ("kernels", "Kernels", _table(kernels)),
        ("roofline", "Roofline", _roofline(kernels, machine)),
        ("kernel", "One kernel", _details(kernels)),
        ("graph", "Graph", _graphs(facts["graphs"])),
        ("rewrites", "Rewrites", _rewrites(facts)),
        ("memory", "Memory", _memory(facts)),
    ]
    if before is not None:
        shown = difference.section(difference.compared(before, facts))
        sections.insert(1, ("difference", "Difference", shown))
    keep = ("model", "kernels", "machine", "summary", "format")
    data = {name: facts[name] for name in keep}
    return shell(f"{facts['model']}: how it runs, and why", sections, data)


def _summary(facts: Facts) -> Markup:
    s, machine = facts["summary"], facts["machine"]
    kernels = facts["kernels"]
    tiles = [
        (human_time(s["seconds"]), f"a run, median of {s['runs']}"),
        (f"{s['flops'] / s['seconds'] / 1e9:.1f} GFLOP/s", _shares(kernels)),
        (human_time(s["between_seconds"]), "of it between kernels"),
        (str(len(kernels)), "kernels and copies"),
        (human_count(s["flops"], "FLOP"), "a run"),
        (human_bytes(s["peak_bytes"]), "memory of a call, with weights"),
        (human_bytes(s["constant_bytes"]), "weights"),
        (human_time(s["compile_seconds"]), "to compile"),
    ]
    boxes = [
        element("div", element("b", b), element("span", t), class_="tile")
        for b, t in tiles
    ]
    threads = plural(machine["threads"], "thread")
    peak = (
        f"; measured peaks: {machine['gflops']:.0f} GFLOP/s, {machine['gbs']:.1f} GB/s"
        if machine["gflops"]
        else ""
    )
    made = f"Tilewright {facts['tilewright']}, {facts['time']}"
    where = f"{machine['processor']}, {threads}{peak}. {made}."
    ends = f"{', '.join(s['inputs'])} → {', '.join(s['outputs'])}"
    return join(
        [
            element("p", where, class_="soft"),
            element("p", element("code", ends)),
            element("div", *boxes, class_="tiles"),
        ]
    )


def _shares(kernels: Sequence[Facts]) -> str:
    """The part of the roofline that all kernels reach together."""
    known = [k for k in kernels if k["peak_share"] is not None]
    taken = sum(k["seconds"] for k in known)
    if not taken:
        return "arithmetic"
    least = sum(k["seconds"] * k["peak_share"] for k in known)
    return f"{least / taken:.0%} of the roofline"


def _time(kernels: Sequence[Facts], total: float) -> Markup:
    said = (
        "Kernels in the order in which they run, as wide as the median time of each; what is left "
        "of a whole run is gray. A bar leads to its kernel."
    )
    return join([element("p", said, class_="soft"), charts.timeline(kernels, total)])


def _table(kernels: Sequence[Facts]) -> Markup:
    find = element(
        "input",
        type="search",
        placeholder="Filter kernels",
        data_for="rows",
        aria_label="filter kernels",
    )
    heading = {"#": "n", "kernel": None, "time": "n", "share": None} | {
        "GFLOP/s": "n",
        "GB/s": "n",
        "of peak": "n",
        "schedule": None,
    }
    head = element("tr", *(element("th", h, class_=c) for h, c in heading.items()))
    most = max((k["share"] for k in kernels), default=1.0) or 1.0
    body = element("tbody", *(_row(n, k, most) for n, k in enumerate(kernels)))
    rows = element("table", element("thead", head), body, id="rows", data_sorts=True)
    said = element("span", "A heading sorts; a name leads to the kernel.")
    return join(
        [
            element("div", find, said, class_="tools soft"),
            element("div", rows, class_="scroll tall", tabindex=0),
        ]
    )


def _row(n: int, k: Facts, most: float) -> Markup:
    width = f"width:{5 * k['share'] / most:.2f}em"
    length = element("span", class_="share", style=width)
    share = element("td", f"{k['share']:.1%}", length, data_v=str(k["share"]))
    peak = "" if k["peak_share"] is None else f"{k['peak_share']:.0%}"
    return element(
        "tr",
        element("td", str(n), class_="n"),
        element("td", element("a", k["name"], href=f"#k{n}")),
        _number(human_time(k["seconds"]), k["seconds"]),
        share,
        _number(f"{k['gflops']:.1f}", k["gflops"]),
        _number(f"{k['gbs']:.1f}", k["gbs"]),
        _number(peak, k["peak_share"]),
        element("td", _schedule(k)),
        data_kernel=n,
    )


def _number(shown: str, value: float | None) -> Markup:
    return element("td", shown, class_="n", data_v="" if value is None else str(value))


def _schedule(k: Facts) -> str:
    if "sketch" not in k:
        return str(k["kind"])
    return f"{k['sketch']}, tuned" if k["tuned"] else str(k["sketch"])


def _roofline(kernels: Sequence[Facts], machine: Facts) -> Markup:
    said = (
        "Each dot is a kernel, larger the more time it takes. The line is what this machine's "
        "arithmetic and memory allow; data in a cache can be above its left part."
    )
    if not machine["gflops"]:
        said = "Each dot is a kernel, larger the more time it takes. The peaks were not measured."
    return join([element("p", said, class_="soft"), charts.roofline(kernels, machine)])


def _details(kernels: Sequence[Facts]) -> Markup:
    options = [
        element("option", f"{n}: {k['name']}", value=n) for n, k in enumerate(kernels)
    ]
    pick = element("select", *options, id="pick", aria_label="kernel")
    return join(
        [
            element("div", pick, class_="tools"),
            element(
                "div", element("noscript", "The details need scripts."), id="details"
            ),
        ]
    )


def _graphs(found: Facts) -> Markup:
    buttons, panels = [], []
    for name in ("before", "after"):
        graph = found[name]
        said = f"{name} its passes ({plural(len(graph['nodes']), 'node')})"
        chosen = name == "after"
        buttons.append(
            element(
                "button",
                said.capitalize(),
                type="button",
                data_shows=f"graph-{name}",
                aria_pressed="true" if chosen else "false",
            )
        )
        panels.append(
            element(
                "div",
                graphs.view(name, graph),
                id=f"graph-{name}",
                data_panel=True,
                hidden=not chosen,
            )
        )
    tabs = element("div", *buttons, class_="tools", data_tabs=True)
    return join([tabs, *panels])


def _rewrites(facts: Facts) -> Markup:
    found = facts["rewrites"]
    rows = [[r["pass"], r["what"], r["where"], r["why"]] for r in found]
    changed = [p for p in facts["passes"] if p["changed"]]
    of_all = f"{len(changed)} of {plural(len(facts['passes']), 'pass', 'passes')}"
    taken = sum(r["taken"] for r in found)
    said = f"{plural(taken, 'rewrite')} by {of_all}."
    if left := len(found) - taken:
        said += f" {plural(left, 'other')} not taken, with the reason."
    steps = [
        [
            p["pipeline"],
            p["name"],
            human_time(p["seconds"]),
            "yes" if p["changed"] else "",
        ]
        for p in facts["passes"]
    ]
    passes = element(
        "details",
        element("summary", f"The time of {plural(len(steps), 'pass', 'passes')}"),
        table(("pipeline", "pass", "time", "changed it"), steps, "<<><"),
    )
    heading = ("pass", "rewrite", "where", "why")
    shown = element("div", table(heading, rows), class_="scroll tall") if rows else ""
    return join([element("p", said, class_="soft"), shown, passes])


def _memory(facts: Facts) -> Markup:
    arena = facts["memory"]
    said = (
        f"Tensors between kernels share one arena of {human_bytes(arena['bytes'])}; "
        "buffers that are not needed at the same time share a place."
    )
    rows = [
        [b["name"], b["type"], human_bytes(b["bytes"]), f"{b['first']} to {b['last']}"]
        for b in sorted(arena["buffers"], key=lambda b: -b["bytes"])
    ]
    listed = element(
        "details",
        element("summary", plural(len(rows), "buffer")),
        table(("buffer", "type", "size", "steps"), rows, "<<><"),
    )
    parts = [element("p", said, class_="soft"), charts.memory(arena), listed]
    return join(parts)
