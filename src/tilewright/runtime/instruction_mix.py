"""The instruction mix of a kernel's inner loop, read from its object code.

The loop is the innermost one with the largest share of fused multiply-adds (the product itself, not
the long code around it that transforms operands), or else with the most vector arithmetic; for a
kernel without loops, all instructions count. A loop is the code that a backward jump encloses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from tilewright.base.dataclass import dataclass
from tilewright.runtime.elf import SHF_EXECINSTR, SHN_UNDEF, ElfObject, parse
from tilewright.runtime.x86 import X86Instruction, decode

COUNTS: Final = ("fma", "other", "loads", "stores", "spills")
# What a fast loop does without.
CAUSES: Final = ("gathers", "scalars", "tests")


@dataclass(frozen=True, slots=True)
class Mix:
    """Instructions of one pass of the loop.

    fmas: fused multiply-adds, dot products of bytes and halves, and tile products. vectors: other
    vector arithmetic. loads: vectors read from memory, as an operand or by a separate load; stores.
    spills: reads and writes on the stack, which are no other loads or stores. width: bytes of the
    widest vector. gathers: loads of single elements into the lanes of a vector, or of all lanes at
    their own addresses. scalars: floating-point arithmetic on one element. tests: comparisons of
    vectors, and jumps forward on a condition.
    """

    instructions: int
    fmas: int
    vectors: int
    loads: int
    stores: int
    spills: int
    width: int
    gathers: int = 0
    scalars: int = 0
    tests: int = 0

    @property
    def counts(self) -> tuple[int, int, int, int, int]:
        """What COUNTS names."""
        return self.fmas, self.vectors, self.loads, self.stores, self.spills

    @property
    def causes(self) -> tuple[int, int, int]:
        """What CAUSES names."""
        return self.gathers, self.scalars, self.tests


def of_kernels(
    objects: Iterable[bytes], symbols: Iterable[str]
) -> dict[str, Mix | None]:
    """The mix of each kernel that an object defines, by its symbol."""
    wanted = set(symbols) - {""}
    found: dict[str, Mix | None] = {}
    for data in objects:
        code = parse(data)
        defined = [
            s.name for s in code.symbols if s.name in wanted and s.section != SHN_UNDEF
        ]
        if defined:
            found |= dict.fromkeys(defined, _inner_loop(code))
    return found


def inner_loop(data: bytes) -> Mix | None:
    """The mix of an object file's hottest loop; None for another processor than x86-64."""
    return _inner_loop(parse(data))


def _inner_loop(found: ElfObject) -> Mix | None:
    if found.machine != "x86_64":
        return None
    mixes: list[Mix] = []
    for section in found.sections:
        if section.flags & SHF_EXECINSTR and section.size:
            mixes.append(_hottest(list(decode(section.data))))
    return max(mixes, key=_heat, default=None)


def _heat(mix: Mix) -> tuple[float, int, int, int]:
    share = mix.fmas / max(mix.instructions, 1)
    return share, mix.fmas, mix.vectors, mix.loads + mix.stores


def _hottest(code: Sequence[X86Instruction]) -> Mix:
    """The innermost loop that does most; where none multiplies, the smallest stretch that does."""
    starts = {i.start: n for n, i in enumerate(code)}
    spans = {
        (starts[i.target], n + 1)
        for n, i in enumerate(code)
        if i.target is not None and i.target <= i.start and i.target in starts
    }
    innermost = [
        (a, b)
        for a, b in spans
        if not any(a <= c and d <= b and (c, d) != (a, b) for c, d in spans)
    ]
    best = max(
        (_count(code[a:b]) for a, b in sorted(innermost)), key=_heat, default=None
    )
    if best is not None and best.fmas:
        return best
    # A one-step reduction has no loop: the enclosing loop counts, or the whole kernel.
    around = sorted({*spans, (0, len(code))}, key=lambda span: span[1] - span[0])
    return next(
        (m for a, b in around if (m := _count(code[a:b])).fmas), best or _count(code)
    )


def _count(loop: Sequence[X86Instruction]) -> Mix:
    fmas = vectors = loads = stores = spills = 0
    for i in loop:
        lea = i.map == 0 and i.opcode == 0x8D
        if i.memory and i.stack and not lea:
            spills += 1
        elif i.memory and i.width and _is_store(i):
            stores += 1
        elif i.memory and i.width:
            loads += 1
        if i.width and _is_fma(i):
            fmas += 1
        elif i.width and not _is_move(i):
            vectors += 1
    width = max((i.width for i in loop), default=0)
    causes = (sum(map(kind, loop)) for kind in (_is_gather, _is_scalar, _is_test))
    return Mix(len(loop), fmas, vectors, loads, stores, spills, width, *causes)


def _is_gather(i: X86Instruction) -> bool:
    """vgather..., vpgather..., and vinsertps, vpinsr... from memory."""
    whole = i.map == 2 and 0x90 <= i.opcode < 0x94
    lane = (i.map, i.opcode) in _INSERTS
    return i.memory and bool(i.width) and (whole or lane)


def _is_scalar(i: X86Instruction) -> bool:
    """vaddss, vmulsd, vfmadd231ss and their kin."""
    if i.map == 1 and 0x51 <= i.opcode < 0x60:
        return i.prefix in (0xF2, 0xF3) and i.opcode not in _CONVERSIONS
    last = i.opcode & 15
    return bool(i.width) and _is_fma(i) and i.opcode >= 0x96 and last in _ONE_LANE


def _is_test(i: X86Instruction) -> bool:
    """vcmpps, vpcmpgtd and their kin, jne forward."""
    if i.target is not None:
        code = (i.map, i.opcode & 0xF0)
        return code in ((0, 0x70), (1, 0x80)) and i.target > i.start
    return bool(i.width) and (i.map, i.opcode) in _COMPARISONS


def _is_fma(i: X86Instruction) -> bool:
    """vfmadd..., vpdpbusd and its kin, vdpbf16ps, the tile products of AMX."""
    if (
        i.map == 2
        and i.prefix == 0x66
        and 0x96 <= i.opcode < 0xC0
        and i.opcode & 15 >= 6
    ):
        return True
    return i.map == 2 and i.opcode in (0x50, 0x51, 0x52, 0x53, 0x5C, 0x5E)


# (map, opcode) of pure moves: registers, memory, broadcasts, gathers and scatters, masks.
_MOVES: Final = frozenset(
    [
        *((1, n) for n in (*range(0x10, 0x18), 0x28, 0x29, 0x2B, 0x6E, 0x6F, 0x77)),
        *((1, n) for n in (0x7E, 0x7F, 0xD6, 0xE7, 0xF0, 0x90, 0x91, 0x92, 0x93)),
        *(
            (2, n)
            for n in (0x18, 0x19, 0x1A, 0x1B, 0x2A, 0x2C, 0x2D, 0x2E, 0x2F, 0x58, 0x59)
        ),
        *((2, n) for n in (0x5A, 0x78, 0x79, 0x7A, 0x7B, 0x7C, 0x8C, 0x8E)),
        *((2, n) for n in (*range(0x90, 0x94), *range(0xA0, 0xA4))),
        *((3, n) for n in (0x19, 0x1B, 0x39, 0x3B)),
    ]
)
_INSERTS: Final = frozenset([(1, 0xC4), (3, 0x20), (3, 0x21), (3, 0x22)])
_COMPARISONS: Final = frozenset(
    [
        *((1, n) for n in (0x64, 0x65, 0x66, 0x74, 0x75, 0x76, 0xC2)),
        *((2, n) for n in (0x29, 0x37)),
        *((3, n) for n in (0x1E, 0x1F, 0x3E, 0x3F)),
    ]
)
_CONVERSIONS: Final = (0x5A, 0x5B)  # between float32 and float64, or integers
_ONE_LANE: Final = (0x9, 0xB, 0xD, 0xF)  # of an opcode: fused, on the first lane only
_STORES: Final = frozenset(
    [
        *((1, n) for n in (0x11, 0x13, 0x17, 0x29, 0x2B, 0x7F, 0xD6, 0xE7, 0x91)),
        *((2, n) for n in (0x2E, 0x2F, 0x8A, 0x8B, 0x8E, 0x63, *range(0xA0, 0xA4))),
        *((3, n) for n in (0x14, 0x15, 0x16, 0x17, 0x19, 0x1B, 0x1D, 0x39, 0x3B)),
    ]
)


def _is_move(i: X86Instruction) -> bool:
    return (i.map, i.opcode) in _MOVES


def _is_store(i: X86Instruction) -> bool:
    narrowing = (
        i.map == 2
        and i.prefix == 0xF3
        and i.opcode & 15 < 6
        and 0x10 <= i.opcode < 0x40
    )
    stored = i.map == 1 and i.opcode == 0x7E and i.prefix != 0xF3
    return narrowing or stored or (i.map, i.opcode) in _STORES
