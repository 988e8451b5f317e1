"""The lists of networks of the zoo, by name."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Final

from benchmarks.zoo_fields import FIELDS
from benchmarks.zoo_models import AGAIN, DRAWN, ENTRIES, Entry
from benchmarks.zoo_others import OTHERS

_OWN: Final[Mapping[str, tuple[Entry, ...]]] = {
    "first": ENTRIES,
    "drawn": DRAWN,
    "again": AGAIN,
    "others": OTHERS,
    "fields": FIELDS,
}
# Not of the others, of which some language models are too large at full width.
_BOUNDED: Final = ("first", "drawn", "again", "fields")
_RACED: Final = ("timm", "transformers")


def _hundred() -> tuple[Entry, ...]:
    """Of timm and Transformers, in an order drawn with seed 18: any beginning is a fair sample."""
    rows = [e for name in _BOUNDED for e in _OWN[name] if e.library in _RACED]
    random.Random(18).shuffle(rows)
    return tuple(rows[:100])


LISTS: Final[Mapping[str, tuple[Entry, ...]]] = {**_OWN, "hundred": _hundred()}


def named(name: str) -> Entry:
    """The network of this name, of any list."""
    (entry,) = [e for rows in _OWN.values() for e in rows if e.name == name]
    return entry
