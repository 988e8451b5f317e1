"""Which operators PyTorch decomposes into others before a graph is imported."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final

from tilewright.frontends.torch.aten.complex_numbers import complex_rule_of
from tilewright.frontends.torch.aten.operators.random import is_random
from tilewright.frontends.torch.aten.own.table import own_decompositions
from tilewright.frontends.torch.aten.rules import name_of, rule_of

# PyTorch 2.13's decomposition of it also counts the labels behind the end of the list, as label 0.
WRONG: Final = "aten.multilabel_margin_loss_forward.default"


def decompositions(refused: Collection[Any] = ()) -> Any:
    """A table for PyTorch, of its own mapping type: all operators without a rule that have a
    decomposition. refused: operators whose rule rejects some use, which are also decomposed.
    """
    import torch

    if refused:
        return _table(refused)
    registered = tuple(torch._C._dispatch_get_all_op_names())
    decomposed = len(torch._decomp.decomposition_table)
    return _table_among(registered, decomposed).copy()


@lru_cache(maxsize=1)
def _table_among(registered: tuple[str, ...], decomposed: int) -> Any:
    """The table as long as no library registers operators or decompositions."""
    return _table(())


def _table(refused: Collection[Any]) -> Any:
    import torch

    table: Any = torch.export.default_decompositions()
    for target in list(table):
        # A dropout that drops nothing returns its input, which its schema does not say.
        if "dropout" in str(target) or target in refused:
            continue
        if _is_known(target) or name_of(target) == WRONG:
            del table[target]
    # PyTorch has further decompositions besides those to its core operators.
    for target, function in torch._decomp.decomposition_table.items():
        if not isinstance(target, torch._ops.OpOverload):
            continue
        if is_random(name_of(target)) or name_of(target) == WRONG:
            continue
        if target._schema.is_mutable:  # PyTorch makes them functional
            continue
        if target not in table and (not _is_known(target) or target in refused):
            table[target] = function
    for name, function in own_decompositions().items():
        table[_named(name)] = function
    return table


def _named(name: str) -> Any:
    """The operator of a name such as `aten.add.Tensor`."""
    import torch

    return attrgetter(name)(torch.ops)


def _is_known(target: Any) -> bool:
    return (rule_of(target) or complex_rule_of(target)) is not None
