"""The two lists of exceptions to ONNX's own tests, the counts, and the row of docs/status.md."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
STATUS = HERE.parent.parent / "docs" / "status.md"
ROW = "ONNX's own tests, passed"

HEADS = {
    "failing": """\
# Tests of ONNX's own runner that do not pass, each with the reason in a word. Precision: what is
# expected rounds each step of Softmax to float16, ours is rounded once and nearer to float64.
""",
    "reference": "# Tests that pass with an operator that falls back to the host, and which one.\n",
}
CATEGORIES = {
    "NodeModel": "node",
    "SimpleModel": "simple",
    "PyTorchConvertedModel": "pytorch-converted",
    "PyTorchOperatorModel": "pytorch-operator",
    "RealModel": "real",
}


@dataclass(frozen=True)
class Outcome:
    """What one test came to. state: "native", "reference" or "failing"; reason: one word."""

    category: str
    name: str
    state: str
    reason: str = ""


def read(name: str) -> dict[str, str]:
    """A list file: the reason per test."""
    path = HERE / f"{name}.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    return dict(line.split() for line in lines if line and not line.startswith("#"))


def write(outcomes: Iterable[Outcome]) -> None:
    """Both lists anew from the tests that ran; a reason that was written by hand stays."""
    found = list(outcomes)
    ran = {o.name for o in found}
    for name, head in HEADS.items():
        old = read(name)
        new = {test: reason for test, reason in old.items() if test not in ran}
        new |= {o.name: old.get(o.name, o.reason) for o in found if o.state == name}
        lines = (f"{test} {new[test]}\n" for test in sorted(new))
        (HERE / f"{name}.txt").write_text(head + "".join(lines))


def counts(tests: Iterable[tuple[str, str]]) -> str:
    """Passed and native per category, as the lists have it; tests: (category, name) each."""
    states = {name: state for state in HEADS for name in read(state)}
    return summary(Outcome(c, name, states.get(name, "native")) for c, name in tests)


def summary(outcomes: Iterable[Outcome]) -> str:
    """Passed and native per category."""
    states: dict[str, Counter[str]] = {}
    for o in outcomes:
        states.setdefault(o.category, Counter())[o.state] += 1
    return "; ".join(
        _count(label, states[c]) for c, label in CATEGORIES.items() if c in states
    )


def _count(label: str, states: Counter[str]) -> str:
    passed = states["native"] + states["reference"]
    return f"{label} {passed:,} of {states.total():,} ({states['native']:,} native)"


def status_row() -> str:
    """The row of docs/status.md for these tests."""
    found = re.search(rf"^\| {ROW} \| (.*?) \|", STATUS.read_text(), re.MULTILINE)
    return found[1] if found else ""


def write_status_row(text: str) -> None:
    """Put the counts into docs/status.md."""
    page = STATUS.read_text()
    new = f"| {ROW} | {text} |"
    page, n = re.subn(rf"^\| {ROW} \|.*? \|", lambda m: new, page, flags=re.MULTILINE)
    if not n:
        raise ValueError(f"docs/status.md has no row {ROW!r}")
    STATUS.write_text(page)
