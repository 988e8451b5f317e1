"""The lists of networks of the zoo, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from benchmarks.zoo_fields import FIELDS
from benchmarks.zoo_models import AGAIN, DRAWN, ENTRIES, Entry
from benchmarks.zoo_others import OTHERS

LISTS: Final[Mapping[str, tuple[Entry, ...]]] = {
    "first": ENTRIES,
    "drawn": DRAWN,
    "again": AGAIN,
    "others": OTHERS,
    "fields": FIELDS,
}


def named(name: str) -> Entry:
    """The network of this name, of any list."""
    (entry,) = [e for rows in LISTS.values() for e in rows if e.name == name]
    return entry
