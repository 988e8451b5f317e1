"""Printing and parsing instructions, one per line.

    LOAD INP[0-24] pop(EX) push(EX) dram=0x40 y=5 x=5 stride=14 ypad=1,0
    GEMM UOP[0-7] pop(LD) push(LD) iter=14,7 dst=7,1 src=28,2 wgt=0,9
    ALU.SHR UOP[8-8] push(ST) iter=1,16 dst=0,1 src=0,1 imm=8
    STORE OUT[0-15] pop(EX) push(EX) dram=0x400 y=1 x=16 stride=16
    FINISH

A range is the elements on the chip, the last one included (`INP[5-]`: none, from 5 on). `pop` and
`push` name the stage of the other end: LD, EX, ST. Pairs are the outer (first) and inner (second)
loop, or the padding before and after. What is zero is left out; `//` begins a comment.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tilewright.targets.vta.config import MemoryId, VTAConfig
from tilewright.targets.vta.errors import VTAError
from tilewright.targets.vta.fields import DEFAULT, AluOp
from tilewright.targets.vta.isa import (
    Alu,
    Finish,
    Gemm,
    Instruction,
    Load,
    Micro,
    Store,
    Transfer,
    decode_stream,
    encode_stream,
)
from tilewright.targets.vta.stages import VtaModule, neighbor, stage

_NEST = {
    "iter": ("iter_out", "iter_in"),
    "dst": ("dst_factor_out", "dst_factor_in"),
    "src": ("src_factor_out", "src_factor_in"),
}
_RECTANGLE = {
    "dram": ("dram_base",),
    "y": ("y_size",),
    "x": ("x_size",),
    "stride": ("x_stride",),
    "ypad": ("y_pad_0", "y_pad_1"),
    "xpad": ("x_pad_0", "x_pad_1"),
}
# The word in front of `=` -> the fields after it.
_PARTS: Mapping[type[Instruction], Mapping[str, tuple[str, ...]]] = {
    Load: _RECTANGLE,
    Store: _RECTANGLE,
    Gemm: {**_NEST, "wgt": ("wgt_factor_out", "wgt_factor_in")},
    Alu: _NEST,
    Finish: {},
}
_IMMEDIATE, _IDLE_IMMEDIATE, _UOP_END = "imm", "idle_imm", "uop_end"
_NAMES = {c.__name__.upper(): c for c in _PARTS}
_SIDES = ("prev", "next")


def show(instruction: Instruction) -> str:
    """One instruction as a line."""
    return " ".join(_words(instruction))


def disassemble(data: bytes, config: VTAConfig = DEFAULT) -> str:
    """The text of a stream, a line for an instruction.

    Raises VTAError for a stream that ends within an instruction and for unknown opcodes.
    """
    return "".join(f"{show(i)}\n" for i in decode_stream(data, config))


def assemble(text: str, config: VTAConfig = DEFAULT) -> bytes:
    """The stream that a text says; the inverse of `disassemble`. Comments are left out.

    Raises VTAError, with the line, for text that is not an instruction, for a value that fits no
    field, and for a range that does not match its sizes.
    """
    if not isinstance(text, str):
        raise VTAError(f"expected text, found {type(text).__name__}")
    program = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("//")[0].split()
        if not words:
            continue
        try:
            instruction = _parse(words)
            instruction.encode(config)
        except VTAError as e:
            raise e.at(f"line {number}") from None
        program.append(instruction)
    return encode_stream(program, config)


def _words(i: Instruction) -> Iterator[str]:
    name = type(i).__name__.upper()
    if isinstance(i, Alu):
        name += f".{_member(AluOp, i.alu_opcode, 'OP')}"
    yield name
    if isinstance(i, Transfer):
        yield f"{_member(MemoryId, i.memory_type, 'MEM')}{_range(i.sram_base, i.elements)}"
    if isinstance(i, Micro):
        yield f"UOP{_range(i.uop_bgn, i.uops)}"
    yield from _dependences(i)
    if isinstance(i, Micro) and i.uop_end < i.uop_bgn:
        yield f"{_UOP_END}={i.uop_end}"
    if isinstance(i, Micro) and i.reset_reg:
        yield "reset"
    for word, names in _PARTS[type(i)].items():
        values = [getattr(i, n) for n in names]
        if any(values):
            shape: Callable[[int], str] = hex if word == "dram" else str
            yield f"{word}={','.join(shape(v) for v in values)}"
    if isinstance(i, Alu) and (i.use_imm or i.imm):
        yield f"{_IMMEDIATE if i.use_imm else _IDLE_IMMEDIATE}={i.imm}"


def _member(kind: type[MemoryId] | type[AluOp], value: int, otherwise: str) -> str:
    return (
        kind(value).name
        if value in kind.__members__.values()
        else f"{otherwise}{value}"
    )


def _range(first: int, count: int) -> str:
    return f"[{first}-{first + count - 1}]" if count else f"[{first}-]"


def _dependences(i: Instruction) -> Iterator[str]:
    for verb in ("pop", "push"):
        for side in _SIDES:
            if getattr(i, f"{verb}_{side}"):
                other = neighbor(stage(i), side)
                yield f"{verb}({other.value if other else side})"


# ---------------------------------------------------------------------------------------- back


_HEAD = re.compile(r"([A-Z]+)(?:\.(\w+))?")
_PLACE = re.compile(r"([A-Z]\w*)\[(\d{1,12})-(\d{0,12})\]")
_DEPENDENCE = re.compile(r"(pop|push)\((\w+)\)")
_PART = re.compile(r"(\w+)=(-?\w{1,12}(?:,-?\w{1,12})*)")


def _parse(words: list[str]) -> Instruction:
    head = _HEAD.fullmatch(words[0])
    cls = _NAMES.get(head[1]) if head else None
    if head is None or cls is None:
        raise VTAError(
            f"{words[0]!r} is not an instruction", hint=f"known: {', '.join(_NAMES)}"
        )
    if (head[2] is not None) != (cls is Alu):
        raise VTAError(
            f"{words[0]!r}: an operation is given for ALU, as in ALU.ADD, only"
        )
    values: dict[str, Any] = {}
    rest = words[1:]
    if cls is Alu:
        values["alu_opcode"] = _number_of(AluOp, head[2], "OP")
    last = None
    if cls is not Finish:
        place = _PLACE.fullmatch(rest[0]) if rest else None
        if place is None:
            raise VTAError(f"{words[0]} is followed by a range, as in INP[0-24]")
        last = int(place[3]) if place[3] else None
        _place(cls, place, values)
        rest = rest[1:]
    named = [word.split("=")[0] for word in rest]
    for name in named:
        if named.count(name) > 1:
            raise VTAError(f"{name!r} is given {named.count(name)} times")
    flags = [d for d in map(_DEPENDENCE.fullmatch, rest) if d]
    for word in rest:
        if not _DEPENDENCE.fullmatch(word):
            _part(cls, word, values)
    at = stage(cls(**values))
    found = cls(**values, **{_flag(at, d): True for d in flags})
    _check_range(found, last)
    return found


def _place(
    cls: type[Instruction], place: re.Match[str], values: dict[str, int]
) -> None:
    """The fields that a range sets."""
    first = int(place[2])
    if issubclass(cls, Transfer):
        values["memory_type"] = _number_of(MemoryId, place[1], "MEM")
        values["sram_base"] = first
    elif place[1] == "UOP":
        values["uop_bgn"] = first
        values[_UOP_END] = int(place[3]) + 1 if place[3] else first
    else:
        raise VTAError(f"{place[0]}: {cls.__name__.upper()} has a range of UOP")


def _part(cls: type[Instruction], word: str, values: dict[str, int]) -> None:
    """The fields that one of the words after the range sets."""
    part = _PART.fullmatch(word)
    parts = dict(_PARTS[cls])
    if issubclass(cls, Micro):
        parts[_UOP_END] = (_UOP_END,)
    if cls is Alu:
        parts |= {_IMMEDIATE: ("imm",), _IDLE_IMMEDIATE: ("imm",)}
    if word == "reset" and issubclass(cls, Micro):
        values["reset_reg"] = True
        return
    if part is None or part[1] not in parts:
        known = ", ".join((*parts, "pop(...)", "push(...)"))
        raise VTAError(
            f"{word!r} is not a part of {cls.__name__.upper()}", hint=f"known: {known}"
        )
    names = parts[part[1]]
    numbers = part[2].split(",")
    if len(names) != len(numbers):
        raise VTAError(f"{word!r}: expected {len(names)} numbers, found {len(numbers)}")
    for name, number in zip(names, numbers):
        values[name] = _number(number, word)
    if part[1] == _IMMEDIATE:
        values["use_imm"] = True


def _number(text: str, word: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise VTAError(f"{word!r}: {text!r} is not a number") from None


def _number_of(kind: type[MemoryId] | type[AluOp], name: str, otherwise: str) -> int:
    known = {
        **{m.name: int(m) for m in kind},
        **{f"{otherwise}{n}": n for n in range(8)},
    }
    if name not in known:
        raise VTAError(
            f"{name!r} is unknown", hint=f"known: {', '.join(kind.__members__)}"
        )
    return known[name]


def _flag(of: VtaModule, dependence: re.Match[str]) -> str:
    verb = dependence[1]
    name = dependence[2]
    for side in _SIDES:
        other = neighbor(of, side)
        if name == (other.value if other else side):
            return f"{verb}_{side}"
    raise VTAError(f"{dependence[0]}: {name} is not a neighbor of {of.value}")


def _check_range(i: Instruction, last: int | None) -> None:
    """The sizes also determine the range's end; the two must agree."""
    if not isinstance(i, Transfer):
        return
    expected = i.sram_base + i.elements - 1 if i.elements else None
    if last != expected and last is not None:
        raise VTAError(
            f"the range ends at {last}, and its sizes give {_range(i.sram_base, i.elements)}",
            hint="leave the end out, as in INP[0-], to have it computed",
        )
