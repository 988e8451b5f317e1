"""The rewrite rules of Lift (Hagedorn, Steuwer, Stoltzfus et al., CGO 2018; Steuwer et al., 2015).

Every rule is exact: both sides are equal for all values, under its conditions.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.notation.lift.rule import Rule
from tilewright.notation.lift.rules import algorithmic, lowering, movement, stencil

FAMILIES: Mapping[str, tuple[Rule, ...]] = {
    "algorithmic": algorithmic.RULES,
    "movement": movement.RULES,
    "stencil": stencil.RULES,
    "lowering": lowering.RULES,
}
RULES: Mapping[str, Rule] = {rule.name: rule for family in FAMILIES.values() for rule in family}
