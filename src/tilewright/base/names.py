"""Making names valid and unique."""

from __future__ import annotations

import re
from collections.abc import Container


def identifier(text: str, prefix: str = "x") -> str:
    """`text` as a word of ASCII letters, digits and `_`, with `prefix` where that makes it one."""
    word = re.sub(r"\W", "_", text, flags=re.ASCII)
    return word if word.isidentifier() else f"{prefix}{word}"


def fresh(taken: set[str], name: str, mark: str = "_") -> str:
    """`untaken`; the result is taken from now on."""
    found = untaken(taken, name, mark)
    taken.add(found)
    return found


def untaken(taken: Container[str], name: str, mark: str = "_") -> str:
    """`name`, or `name_2`, `name_3`, ... (with `mark` for `_`) where that is taken."""
    candidate, n = name, 1
    while candidate in taken:
        n += 1
        candidate = f"{name}{mark}{n}"
    return candidate
