"""Replace in-place operators by functional ones if that is unobservable.

`y = conv(x); y.relu_()` becomes `y = relu(conv(x))`. PyTorch can rewrite any program this way, but
it retraces it, which takes longer than the rest of the import; most convolutional networks only
change results of their own layers in place.

Requires: the changed tensor was made by an operator that always makes a new tensor, and every
reader of it before the change makes a new tensor, too, so that no view of it is left. Dropout that
drops nothing returns its input, like an in-place operator: both only give the same tensor another
name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tilewright.frontends.torch.aten.rules import name_of, rule_of

_NEW: Final = frozenset(
    f"aten.{name}"
    for name in (
        "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution "
        "linear matmul mm bmm addmm baddbmm batch_norm layer_norm group_norm instance_norm add "
        "sub mul div max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d cat stack "
        "relu relu6 silu gelu sigmoid tanh hardswish hardsigmoid leaky_relu elu softmax "
        "embedding mean sum rsub"
    ).split()
)


def functional_forms(module: Any) -> Mapping[Any, Any]:
    """The functional operators for the nodes that change a tensor, as far as this is possible."""
    nodes = list(module.graph.nodes)
    order = {n: place for place, n in enumerate(nodes)}
    found: dict[Any, Any] = {}
    for n in nodes:
        form = _form(n)
        if form is not None and _unseen(n, order, found):
            found[n] = form
    return found


def changed(node: Any, forms: Mapping[Any, Any]) -> list[Any]:
    """The nodes that stand for the tensor that `node` changes; none if it changes nothing."""
    if node in forms:
        return _names(node, forms)
    return []


def _names(node: Any, forms: Mapping[Any, Any]) -> list[Any]:
    """All nodes that stand for one tensor: the one that made it, and those that return it."""
    while node in forms or _gives_on(node):
        node = node.args[0]
    found = [node]
    for name in found:  # grows during the loop
        found += [r for r in name.users if _passes(r, name, forms) and r not in found]
    return found


def _passes(node: Any, given: Any, forms: Mapping[Any, Any]) -> bool:
    return (node in forms or _gives_on(node)) and node.args[0] is given


def _gives_on(node: Any) -> bool:
    dropout = "dropout" in str(node.target) and node.op == "call_function"
    return dropout and len(node.args) == 3 and node.args[2] is False


def _form(node: Any) -> Any:
    """`aten.relu.default` for `aten.relu_.default`; None for any other operator."""
    import torch

    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None or not schema.is_mutable:
        return None
    packet, _, overload = str(node.target).removeprefix("aten.").rpartition(".")
    if not str(node.target).startswith("aten.") or not packet.endswith("_"):
        return None
    form = getattr(getattr(torch.ops.aten, packet[:-1], None), overload, None)
    if form is not None and rule_of(form) is not None:
        return form
    return None


def _unseen(node: Any, order: Mapping[Any, int], found: Mapping[Any, Any]) -> bool:
    """Whether no other view of the tensor that `node` changes is left."""
    names = _names(node.args[0], found)
    if not _is_new(names[0]):
        return False
    readers = {r for name in names for r in name.users if order[r] < order[node]}
    return all(r in names or _is_new(r) for r in readers)


def _is_new(node: Any) -> bool:
    if node.op != "call_function":
        return False
    name = name_of(node.target)
    return name in _NEW or name.rpartition(".")[0] in _NEW
