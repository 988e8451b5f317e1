"""The rules registered by users, which every later compilation applies."""

from __future__ import annotations

from tilewright.base.errors import InputError
from tilewright.graph.rules.rule import Rule

_registered: dict[str, Rule] = {}


def register(rule: Rule) -> Rule:
    """Check a rule on random instances of its pattern and apply it from now on.

    Raises InputError for a wrong rule, with a counterexample, for a rule that cannot be tried, and
    for a name that is in use.
    """
    if rule.name in _registered:
        raise InputError(
            f"a rule of the name {rule.name!r} is registered already",
            code="TW-RULE",
            hint="Choose another name, or call `unregister` first",
        )
    from tilewright.graph.rules.check import check

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
    """The rules, in the order of their registration."""
    return tuple(_registered.values())
