"""Reading commented assembler text: which loop of the kernel each line is in.

LLVM names every block and the header of its enclosing loop; a header's name begins with our loop's
name (`header_stem`). Merged blocks and copies of a loop keep the name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_BLOCK: Final = re.compile(
    r"^(?:\.LBB(?P<label>\d+_\d+):|# %bb\.\d+:)\s*(?:# %(?P<name>\S+))?"
)
_HEADER: Final = re.compile(r"#\s*=>\s*This (?:Inner )?Loop Header")
_INSIDE: Final = re.compile(r"#\s+in Loop: Header=BB(\d+_\d+)")
_NAME: Final = re.compile(r"^loop\.(.+)\.\d+$")


def loops_of_lines(assembly: str) -> list[tuple[str, str]]:
    """Each instruction or label, without comments, and its innermost loop.

    The loop's name is as `header_stem` writes it; empty outside every loop.
    """
    lines = assembly.splitlines()
    names = _headers(lines)
    found, inside = [], ""
    for line in lines:
        if block := _BLOCK.match(line):
            label = block["label"]
            inside = names.get(label, "") if label else ""
        elif around := _INSIDE.search(line):
            inside = names.get(around[1], "")
        code = line.split("#", 1)[0].rstrip()
        if code and not _is_directive(code):
            found.append((code, inside))
    return found


def _headers(lines: list[str]) -> dict[str, str]:
    """The loop's name of every label that begins one."""
    return dict(_named(lines))


def _named(lines: list[str]) -> Iterator[tuple[str, str]]:
    label = name = ""
    for line in lines:
        if block := _BLOCK.match(line):
            label, name = block["label"] or "", block["name"] or ""
        if label and _HEADER.search(line) and (loop := _NAME.match(name)):
            yield label, loop[1]


def _is_directive(code: str) -> bool:
    """Whether a line is a directive and not code."""
    return code.startswith(("\t.", ".Lfunc"))
