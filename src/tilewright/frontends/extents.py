"""The extents for which a model is made, in the metadata of ONNX: it has no other place for them.

`tilewright_ranges` holds, by the name of a dimension of the inputs, the least and the greatest
extent (null: without bound), what divides it, and the least one that calls may have,
`{"rows": [2, 64, 2, 2]}`; `tilewright_conditions` what else is true of extents, as lists of a
function and its operands, `[[">", "rows", ["*", 2, "columns"]]]`: `runtime/conditions.py` has the
functions. Other runtimes ignore both.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from tilewright.base.errors import ModelError
from tilewright.graph.nodes import ExtentRange, Graph, Value
from tilewright.runtime.conditions import ExtentCondition

RANGES: Final = "tilewright_ranges"
CONDITIONS: Final = "tilewright_conditions"
KEYS: Final = (RANGES, CONDITIONS)
_LONGEST: Final = 1 << 20  # characters of either


def metadata_of(graph: Graph) -> dict[str, str]:
    """What the graph says of the extents of its inputs, as text by key; empty if nothing."""
    names = dimensions(graph.inputs)
    return metadata(names, graph.ranges, graph.conditions)


def metadata(
    names: Collection[str],
    ranges: Mapping[str, ExtentRange],
    conditions: Sequence[ExtentCondition],
) -> dict[str, str]:
    """The same of the dimensions in `names`."""
    held = {
        RANGES: {n: list(r) for n, r in ranges.items() if n in names},
        CONDITIONS: [c.to_json() for c in conditions if {*c.names} <= {*names}],
    }
    return {key: json.dumps(said) for key, said in held.items() if said}


def with_metadata(graph: Graph, given: Mapping[str, str]) -> Graph:
    """The graph for the extents that the metadata of its model says, if it says any.

    Raises ModelError for metadata that `metadata_of` does not write.
    """
    texts = {key: text for key, text in given.items() if key in KEYS}
    if not texts:
        return graph
    names = dimensions(graph.inputs)
    ranges = _parsed(texts, RANGES, {})
    conditions = _parsed(texts, CONDITIONS, [])
    if not isinstance(ranges, dict) or not isinstance(conditions, list):
        raise _malformed(RANGES if isinstance(conditions, list) else CONDITIONS)
    try:
        found = tuple(map(ExtentCondition.of_json, conditions))
    except ValueError as error:
        raise _malformed(CONDITIONS, str(error)) from None
    about = {n for c in found for n in c.names} | set(ranges)
    for name in sorted(about - names):
        raise _malformed("its metadata", f"no input has a dimension {name[:80]!r}")
    checked = {name: _range(name, said) for name, said in ranges.items()}
    return replace(graph, ranges=checked, conditions=found)


def dimensions(inputs: Iterable[Value]) -> set[str]:
    """The names of the dimensions of inputs."""
    return {n for v in inputs for n in v.shape or () if isinstance(n, str)}


def _parsed(texts: Mapping[str, str], key: str, default: Any) -> Any:
    if key not in texts:
        return default
    try:
        if len(texts[key]) > _LONGEST:
            raise ValueError("it is too long")
        return json.loads(texts[key])
    except (ValueError, RecursionError) as error:
        raise _malformed(key, str(error)) from None


def _range(name: str, given: Any) -> ExtentRange:
    """A range as `metadata` writes it."""
    if isinstance(given, list) and len(given) == len(ExtentRange._fields):
        found = ExtentRange(*given)
        least, most, step, accepted = found
        whole = all(type(n) is int for n in (least, step, accepted))
        ends = most is None or (type(most) is int and most >= least)
        if whole and ends and 0 <= accepted <= least and step >= 1:
            return found
    raise _malformed(RANGES, f"{name[:80]!r} is {str(given)[:80]}")


def _malformed(key: str, why: str = "") -> ModelError:
    return ModelError(
        f"{key} does not say for which extents the model is made{': ' if why else ''}{why}",
        hint="remove it from the model's metadata_props, or write the model by tw.to_onnx",
    )
