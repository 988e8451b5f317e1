"""The inputs of a task's programs and the expected results, in a serialized form.

The format is a line of JSON, followed by the arrays. An array that repeats its first elements (as
random inputs do) is stored as these.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import dtype_of
from tilewright.base.errors import InputError
from tilewright.runtime import schema
from tilewright.runtime.model import Tensor

Array = np.ndarray[Any, Any]
_ALIGNMENT: Final = 64
_ARRAY: Final = {"dtype": schema.Text, "at": schema.Count, "count": schema.Count}


@dataclass(frozen=True, slots=True)
class WrongElement:
    """An element of flattened contents that differs from its `right` value by more than a bound."""

    place: int
    got: Any
    right: Any
    bound: float

    def __str__(self) -> str:
        within = f" within {self.bound:.3g}" if self.bound else ""
        return f"is {self.got!s}, expected {self.right!s}{within}"


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceResult:
    """An expected output. All arrays are one-dimensional.

    before: elements that fill its memory before a call, repeated. whole: the right contents, as
    computed by a verified program. bound: the largest error allowed for any element. places:
    elements that were also computed another way, with their `value` and the error allowed for each
    (`error`).
    """

    before: Array
    whole: Array
    bound: float
    places: Array
    value: Array
    error: Array

    def wrong(self, got: Array) -> WrongElement | None:
        """The first wrong element of flattened contents; None if all are right."""
        if np.array_equal(got.view(np.uint8), self.whole.view(np.uint8)):
            return None
        everywhere = np.arange(len(got))
        found = _first(everywhere, got, self.whole, np.full(len(got), self.bound))
        return self.misjudged(got) if found is None else found

    def misjudged(self, got: Array) -> WrongElement | None:
        """The first element that differs from the other computation's value; None if none does."""
        return _first(self.places, got[self.places], self.value, self.error)


def _first(
    places: Array, got: Array, right: Array, bound: Array
) -> WrongElement | None:
    """The first value that differs by more than its bound; NaN and infinities must match."""
    wide, value = got.astype(np.float64), right.astype(np.float64)
    with np.errstate(invalid="ignore"):
        near = np.abs(wide - value) <= bound
    off = ~(near | (wide == value) | (np.isnan(wide) & np.isnan(value)))
    for n in np.flatnonzero(off)[:1]:
        return WrongElement(int(places[n]), got[n], right[n], float(bound[n]))
    return None


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceCase:
    """One set of inputs, each as elements that are repeated, and the results."""

    inputs: tuple[Array, ...]
    results: tuple[ReferenceResult, ...]


def pack(cases: Sequence[ReferenceCase]) -> bytes:
    """Serialize the cases."""
    parts: list[bytes] = []
    at = 0

    def kept(a: Array) -> dict[str, Any]:
        nonlocal at
        data = np.ascontiguousarray(a).tobytes()
        start = at
        at += len(data) + -len(data) % _ALIGNMENT
        parts.append(data + bytes(-len(data) % _ALIGNMENT))
        return {"dtype": dtype_of(a.dtype).name, "at": start, "count": a.size}

    head = [
        {
            "inputs": [kept(a) for a in case.inputs],
            "results": [
                {f: kept(getattr(r, f)) for f in _FIELDS} | {"bound": r.bound}
                for r in case.results
            ],
        }
        for case in cases
    ]
    text = json.dumps(head).encode()
    padding = b" " * (-(len(text) + 1) % _ALIGNMENT)
    return b"".join([text, padding, b"\n", *parts])


_FIELDS: Final = ("before", "whole", "places", "value", "error")
_FORM: Final = [
    {
        "inputs": [_ARRAY],
        "results": [{**dict.fromkeys(_FIELDS, _ARRAY), "bound": schema.Number}],
    }
]


def unpack(data: bytes | memoryview) -> list[ReferenceCase]:
    """The inverse of `pack`; arrays are views of the data. Raises InputError for invalid data."""
    whole = memoryview(data)
    line = bytes(whole[: 1 << 20]).partition(b"\n")[0]
    try:
        head = json.loads(line)
        schema.check(head, _FORM)
        return list(_cases(head, whole[len(line) + 1 :]))
    except (ValueError, RecursionError) as error:
        raise InputError(f"invalid reference results: {error}") from error


def _cases(head: Any, data: memoryview) -> Iterator[ReferenceCase]:
    def array(told: dict[str, Any]) -> Array:
        dtype = dtype_of(told["dtype"]).numpy
        found: Array = np.frombuffer(data, dtype, told["count"], told["at"])
        return found

    for case in head:
        results = (
            ReferenceResult(bound=r["bound"], **{f: array(r[f]) for f in _FIELDS})
            for r in case["results"]
        )
        yield ReferenceCase(tuple(map(array, case["inputs"])), tuple(results))


def filler(tensors: Sequence[Tensor]) -> ReferenceCase:
    """Inputs for a program without a reference: small numbers, and no results."""
    return ReferenceCase(tuple(map(_some, tensors)), ())


def _some(t: Tensor) -> Array:
    dtype = dtype_of(t.dtype)
    count = min(math.prod(t.extents), 1 << 16)
    if not dtype.is_float:
        return np.zeros(count, dtype.numpy)
    return np.random.default_rng(0).standard_normal(count).astype(dtype.numpy)
