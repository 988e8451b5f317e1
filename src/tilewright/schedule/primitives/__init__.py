"""The primitives, one family per file; importing this package fills the table."""

from __future__ import annotations

from tilewright.schedule.primitives import (
    cache,
    fission,
    hardware,
    inline,
    kinds,
    layout,
    nest,
    notes,
    pack,
    pad,
    partial,
    partition,
    pipeline,
    place,
    reverse,
    reverse_inline,
    slide,
    storage,
    threads,
    tile,
)

__all__ = [
    "cache",
    "fission",
    "hardware",
    "inline",
    "kinds",
    "layout",
    "nest",
    "notes",
    "pack",
    "pad",
    "partial",
    "partition",
    "pipeline",
    "place",
    "reverse",
    "reverse_inline",
    "slide",
    "storage",
    "threads",
    "tile",
]
