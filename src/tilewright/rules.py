"""What the author of a graph rule imports: patterns, the rule, and where it is registered.

    from tilewright.rules import Rule, onnx, register, tensors

    (x,) = tensors("x")
    register(Rule("relu-twice", onnx.Relu(onnx.Relu(x)), onnx.Relu(x)))

Everything here lives further down; this module is the door to it. `docs/rules.md` walks through a
rule.
"""

from __future__ import annotations

from tilewright.graph.ops.traits import Trait
from tilewright.graph.rules.check import check
from tilewright.graph.rules.driver import rewrite
from tilewright.graph.rules.match import Match
from tilewright.graph.rules.patterns import (
    Attribute,
    Computed,
    LeftOut,
    constants,
    either,
    having,
    maybe,
    one_of,
    onnx,
    operators,
    reals,
    tensors,
)
from tilewright.graph.rules.registry import register, registered, unregister
from tilewright.graph.rules.rule import Rule, SampleApplication

__all__ = [
    "Attribute",
    "Computed",
    "SampleApplication",
    "LeftOut",
    "Match",
    "Rule",
    "Trait",
    "check",
    "constants",
    "either",
    "having",
    "maybe",
    "one_of",
    "onnx",
    "operators",
    "reals",
    "register",
    "registered",
    "rewrite",
    "tensors",
    "unregister",
]
