"""`tilewright verify --kernels`: validates every kernel of a model, in guarded memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilewright.cli.options import CommandOptions
from tilewright.cli.output import dump, progress, say, table

if TYPE_CHECKING:
    from tilewright.driver.validate import Verdict
    from tilewright.graph.nodes import Graph


def verify(graph: Graph, options: CommandOptions, seed: int, as_json: bool) -> int:
    """Validate the kernels, print the results, and return the exit code."""
    from tilewright.driver.validate import validate_model

    keywords = {name: v for name, v in options.keywords().items() if name != "dims"}
    with progress("validating kernels"):
        found = validate_model(graph, seed=seed, **keywords)
    wrong = [v for v in found if not v.ok]
    if as_json:
        dump({"ok": not wrong, "kernels": [v.to_dict() for v in found]})
        return int(bool(wrong))
    say(_table(found))
    for v in wrong:
        for fault in v.faults:
            say(f"\nkernel {v.kernel}: {fault}")
    return int(bool(wrong))


def _table(found: Sequence[Verdict]) -> str:
    rows = [
        [v.kernel, v.kind, v.extents, f"{v.compared}", f"{v.error:.2e}", f"{v.bound:.0e}",
         "wrong" if not v.ok else v.note or "ok"]
        for v in found
    ]  # fmt: skip
    heading = ["kernel", "kind", "results", "compared", "error", "allowed", ""]
    return table(heading, rows, "<<<>>><")
