"""Names: one that is a word, one that is not taken."""

from __future__ import annotations

import re


def identifier(text: str, prefix: str = "x") -> str:
    """`text` as a word of ASCII letters, digits and `_`, with `prefix` where that makes it one."""
    word = re.sub(r"\W", "_", text, flags=re.ASCII)
    return word if word.isidentifier() else f"{prefix}{word}"


def fresh(taken: set[str], name: str) -> str:
    """`name`, or `name_2`, `name_3`, ... where that is taken; the result is taken from now on."""
    candidate, n = name, 1
    while candidate in taken:
        n += 1
        candidate = f"{name}_{n}"
    taken.add(candidate)
    return candidate
