"""The rules that users register; every compilation from then on applies them."""

from __future__ import annotations

from tilewright.base.errors import InputError
from tilewright.graph.rules.check import check
from tilewright.graph.rules.rule import Rule

_registered: dict[str, Rule] = {}


def register(rule: Rule) -> Rule:
    """Check a rule on random instances of its pattern, and apply it from now on.

    Raises InputError with a counterexample for a rule that is wrong, and for one that cannot be
    tried, or whose name is taken.
    """
    if rule.name in _registered:
        raise InputError(
            f"a rule of the name {rule.name!r} is registered already",
            code="TW-RULE",
            hint="Choose another name, or call `unregister` first",
        )
    check(rule)
    _registered[rule.name] = rule
    return rule


def unregister(name: str) -> None:
    """Stop applying the rule of that name. Raises InputError if there is none."""
    if name not in _registered:
        known = ", ".join(_registered) or "none"
        raise InputError(
            f"no rule {name!r} is registered", code="TW-RULE", hint=f"Known: {known}"
        )
    del _registered[name]


def registered() -> tuple[Rule, ...]:
    """The rules, in the order in which they were registered."""
    return tuple(_registered.values())
