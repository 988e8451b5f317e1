"""Replaces generic pointers by pointers to a known memory space.

Code is generated with generic pointers, each cast from one whose memory is known. Back ends that do
not infer the memory, or have no generic pointers, need it stated:

    %a = addrspacecast ptr addrspace(3) @s to ptr
    %b = getelementptr i8, ptr %a, i64 4     ->    %b = getelementptr i8, ptr addrspace(3) @s, i64 4
    store i32 0, ptr %b                            store i32 0, ptr addrspace(3) %b
"""

from __future__ import annotations

import re
from typing import Final

from tilewright.base.errors import CompileError

_CAST: Final = re.compile(
    r"^\s*(%\S+) = addrspacecast ptr addrspace\((\d+)\) (.+) to ptr$"
)
_MADE: Final = re.compile(r"^\s*(%\S+) = getelementptr [^,]+, ptr addrspace\((\d+)\)")
_USE: Final = re.compile(r"\bptr (%[\w.$-]+)")
_HEAD: Final = re.compile(r"^define ")


def in_spaces(text: str) -> str:
    """LLVM assembly whose pointers have address spaces.

    Raises CompileError for a pointer that comes from several memories.
    """
    spaces: dict[str, tuple[int, str]] = {}

    def named(use: re.Match[str]) -> str:
        found = spaces.get(use[1])
        if found is None:
            return use[0]
        space, name = found
        return f"ptr {name}" if space == 0 else f"ptr addrspace({space}) {name}"

    lines = []
    for line in text.split("\n"):
        if _HEAD.match(line):
            spaces.clear()
        cast = _CAST.match(line)
        if cast is not None:
            spaces[cast[1]] = (int(cast[2]), cast[3])
            continue
        line = _USE.sub(named, line)
        made = _MADE.match(line)
        if made is not None:
            spaces[made[1]] = (int(made[2]), made[1])
        elif re.search(r"= (phi|select) .*\bptr\b", line):
            raise CompileError(
                "a pointer is selected at run time, but this GPU has separate memory spaces",
                hint="index one buffer instead",
            )
        lines.append(line)
    return "\n".join(lines)
