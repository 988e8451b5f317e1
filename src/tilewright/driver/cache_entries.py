"""Descriptions of the kernel cache's entries, for display."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from tilewright.base.store import FileStore
from tilewright.driver.compiled import CompiledGroup
from tilewright.driver.model_cache import name_of

MODEL: Final = "model"
KERNEL: Final = "kernel"
# The kinds of entries, by prefix of their keys; all other entries are code of kernels.
_KINDS: Final = {
    "model-": MODEL,
    "seal-": "seal of a model",
    "files-": "file names of a model",
    "contents-": "digest of a file",
    "sources-": "digest of the compiler",
}


def described(store: FileStore, key: str) -> tuple[str, str]:
    """The kind of an entry, and the name of its model or kernel; empty if it has none."""
    kind = next((k for start, k in _KINDS.items() if key.startswith(start)), KERNEL)
    if kind == MODEL:
        return kind, name_of(store, key)
    if kind == KERNEL:
        with suppress(ValueError, RecursionError):
            return kind, CompiledGroup.from_bytes(store.peek(key) or b"").symbol
    return kind, ""
