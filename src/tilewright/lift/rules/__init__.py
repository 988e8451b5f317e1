"""The rewrite rules of Lift (Steuwer et al., ICFP 2015; Hagedorn et al., CGO 2018), by family.

Every rule is exact: both sides are equal for all values, under its conditions. The rules of an
accelerator are made for each machine: `device.rules`.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.lift.rule import Rule
from tilewright.lift.rules.algorithmic import RULES as _ALGORITHMIC
from tilewright.lift.rules.lowering import RULES as _LOWERING
from tilewright.lift.rules.movement import RULES as _MOVEMENT
from tilewright.lift.rules.stencil import RULES as _STENCIL

FAMILIES: Mapping[str, tuple[Rule, ...]] = {
    "algorithmic": _ALGORITHMIC,
    "movement": _MOVEMENT,
    "stencil": _STENCIL,
    "lowering": _LOWERING,
}
RULES: Mapping[str, Rule] = {
    rule.name: rule for family in FAMILIES.values() for rule in family
}
