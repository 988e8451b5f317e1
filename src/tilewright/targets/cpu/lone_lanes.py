"""Masked stores of one lane as scalar stores, where LLVM would store too much.

For AVX-512, LLVM before version 23 merges a truncation and the masked store of its result, and
then, if the mask has one bit, emits a scalar store of the wider element (issue 179489 of
llvm-project): it overwrites neighbors, or memory past the end of a buffer.

    call void @llvm.masked.store.v4i16.p0(<4 x i16> %v, ptr align 2 %at, <4 x i1> <i1 true, ...>)

becomes

    %at.0.lone = extractelement <4 x i16> %v, i64 0
    store i16 %at.0.lone, ptr %at, align 2
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import gcd

STORE = "llvm.masked.store"
# Only constant masks: LLVM has folded other known ones. Elements of 64 bits are never narrowed.
_CONSTANT = re.compile(
    rf"^ *(?:tail )?call void @{re.escape(STORE)}\.v\d+i(?P<bits>8|16|32)\.p0\("
    r"(?P<vector><\d+ x i\d+>) (?P<value>%[^\s,]+), "
    r"ptr (?P<how>[^%,]*)(?P<at>%[^\s,]+), "
    r"<\d+ x i1> <(?P<mask>[^>]*)>\)(?P<rest>[^\n]*)$",
    re.MULTILINE,
)


def without_lone_lanes(text: str, registers: int) -> str:
    """LLVM assembly in which no masked store of a part of a vector has exactly one lane.

    registers: bits of a vector register. A long vector is stored in parts or as a whole; parts are
    smallest for 64-bit elements. If no such part has exactly one lane, neither does any larger one.
    """
    number = 0

    def changed(found: re.Match[str]) -> str:
        nonlocal number
        number += 1
        return "\n".join(_apart(found, registers // 64, f"lone{number}"))

    return _CONSTANT.sub(changed, text)


def _apart(found: re.Match[str], part: int, name: str) -> Iterator[str]:
    """The lines instead of a store."""
    mask = [bit.strip() == "i1 true" for bit in found["mask"].split(",")]
    lone = []
    for start in range(0, len(mask), part):
        lanes = [n for n, bit in enumerate(mask[start : start + part], start) if bit]
        lone += lanes if len(lanes) == 1 else []
    type = f"i{found['bits']}"
    known = re.search(r"align (\d+)", found["how"])
    align = int(known[1]) if known else 1
    for lane in lone:
        mask[lane] = False
        item, at = f"%{name}.{lane}", f"%{name}.{lane}.at"
        offset = lane * int(found["bits"]) // 8
        yield f"  {item} = extractelement {found['vector']} {found['value']}, i64 {lane}"
        yield f"  {at} = getelementptr i8, ptr {found['at']}, i64 {offset}"
        yield f"  store {type} {item}, ptr {at}, align {gcd(align, offset)}"
    if not lone:
        yield found[0]
    elif any(mask):
        bits = ", ".join(f"i1 {str(bit).lower()}" for bit in mask)
        before = found[0].index(found["mask"], found.start("mask") - found.start())
        rest = found[0][before + len(found["mask"]) :]
        yield found[0][:before] + bits + rest
