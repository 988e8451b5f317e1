"""Every pass over a graph leaves its outputs equal: random graphs, before and after each pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from tilewright.frontends.onnx.reference import OnnxFallback
from tilewright.graph import interp, pipeline
from tilewright.graph.nodes import Graph, Operation
from tilewright.graph.pipeline import FoldEmpty, RemoveNoOps, graph_pipeline
from tilewright.graph.verify import verify
from tilewright.testing.differential import ExpectedOutputs
from tilewright.testing.graphs import Array
from tilewright.testing.random_graphs import random_case

FALLBACK = OnnxFallback()
# Of processors that multiply bytes, signed ones too, and of those that do not; see graph_pipeline.
PIPELINES = (
    graph_pipeline("default", FALLBACK),
    graph_pipeline("fast", FALLBACK, signed=True, eight_bits=True),
    graph_pipeline("exact", FALLBACK),
    graph_pipeline("default", FALLBACK, byte_products=False, fusion=False),
)
BATCH = 25


def wrong_after_passes(seed: int, changed: Counter[str]) -> dict[str, list[str]]:
    """By pass, in what the graph after it differs from the one before; counts what changes it."""
    case = random_case(seed, 3 + seed % 8)
    before = case.graph
    found: dict[str, list[str]] = {}

    def observe(name: str, after: Graph) -> None:
        nonlocal before
        if after is not before:
            changed[name] += 1
            verify(after)
            found.setdefault(name, []).extend(differences(before, after, case.inputs))
        before = after

    with np.errstate(all="ignore"):
        PIPELINES[seed % len(PIPELINES)].run(case.graph, observe=observe)
    return {name: lines for name, lines in found.items() if lines}


def differences(before: Graph, after: Graph, inputs: Mapping[str, Array]) -> list[str]:
    """The outputs of `after` that are not those of `before`, a line each."""
    if [v.name for v in before.outputs] != [v.name for v in after.outputs]:
        return ["the outputs have other names"]
    expected = ExpectedOutputs(before, inputs, FALLBACK)
    results = interp.evaluate(after, inputs, fallback=FALLBACK)
    return expected.mismatches([results[v.name] for v in after.outputs])


# 300 in `make test`, 20,000 in all.
@pytest.mark.sampled(67)
@pytest.mark.parametrize("start", range(0, 20_000, BATCH))
def test_every_pass_leaves_outputs_equal(start: int) -> None:
    changed: Counter[str] = Counter()
    wrong = {
        seed: lines
        for seed in range(start, start + BATCH)
        if (lines := wrong_after_passes(seed, changed))
    }
    assert not wrong
    assert len(changed) >= 4, "the graphs leave the passes nothing to do"


def test_a_pass_that_changes_a_result_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A seeded fault: a sum of two is taken for a difference."""

    def faulty(program: Graph, rules: object, *rest: object) -> Graph:
        def other(op: Operation) -> Operation:
            return replace(op, op_type="Sub") if op.op_type == "Add" else op

        return program.with_operations([other(op) for op in program.operations])

    monkeypatch.setattr(pipeline, "rewrite", faulty)
    changed: Counter[str] = Counter()
    seen = [wrong_after_passes(seed, changed) for seed in range(0, 60, 4)]
    assert any(seen)
    assert {FoldEmpty.name}.isdisjoint({name for wrong in seen for name in wrong})
    assert changed[RemoveNoOps.name]
