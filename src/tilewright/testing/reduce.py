"""Smaller cases that still fail; see `graph.minimal`."""

from __future__ import annotations

from tilewright.graph.infer import FallbackProvider
from tilewright.graph.minimal import Fails, minimal
from tilewright.testing.graphs import Case


def reduce_case(
    case: Case,
    fails: Fails,
    fallback: FallbackProvider | None = None,
) -> Case:
    """A case that still `fails`, from which no operator can be removed."""
    if fallback is None:
        from tilewright.frontends.onnx.reference import OnnxFallback

        fallback = OnnxFallback()
    return Case(*minimal(case.graph, dict(case.inputs), fails, fallback))
