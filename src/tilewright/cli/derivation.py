"""The substitutions that a search of the graph applied, for display by commands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.base.text import listing, plural
from tilewright.cli.output import table


def steps_table(steps: Sequence[Mapping[str, Any]]) -> str:
    """The steps, with the cost of the searched part before and after each."""
    rows = [
        [s["rule"], s["node"], shown_cost(s["before"]), shown_cost(s["after"])]
        for s in steps
    ]
    return table(["rule", "node", "before", "after"], rows, "<<>>")


def used_line(meta: Mapping[str, Any]) -> str:
    """A compiled model's description of its substitutions; empty if there are none."""
    steps = meta.get("substitutions", ())
    if not steps:
        return ""
    counts = Counter(s["rule"] for s in steps)
    names = [f"{count} x {rule}" for rule, count in counts.items()]
    return f"optimized: {plural(len(steps), 'substitution')}: {listing(names)}"


def shown_cost(number: float) -> str:
    """A cost with four digits."""
    return f"{number:.4g}"
