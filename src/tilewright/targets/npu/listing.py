"""Printing and parsing programs."""

from __future__ import annotations

import re
from math import isnan

from tilewright.targets.npu.errors import NPUError
from tilewright.targets.npu.isa import FORMS, DramRegion, NpuInstruction, NpuProgram

_PLACE = re.compile(r"(\w+)\[(\d+)\]$")
_FIELD = re.compile(r"(\w+)=(-?\d+)$")


def show(program: NpuProgram) -> str:
    """A line per input, output, constant and instruction; what is in a chain is indented."""
    lines = [_region(".input", r) for r in program.inputs]
    lines += [_region(".output", r) for r in program.outputs]
    lines += [
        f".const dram[{address}] {value!r}" for address, value in program.constants
    ]
    notes = dict(program.notes)
    start = True
    for index, instruction in enumerate(program.instructions):
        line = ("" if start or instruction.op == "end_chain" else "  ") + str(
            instruction
        )
        start = instruction.op == "end_chain"
        lines.append(f"{line:<44}# {notes[index]}" if index in notes else line)
    return "\n".join(lines) + "\n"


def _region(word: str, region: DramRegion) -> str:
    shape = "x".join(map(str, region.shape))
    return f"{word} {region.name} dram[{region.address}] {shape}"


def parse(text: str) -> NpuProgram:
    """The program that `show` shows; comments are kept as its notes.

    Raises NPUError naming the line of an unknown opcode, a field that it does not have or lacks, a
    memory that it cannot use, or a number that is none.
    """
    regions: dict[str, list[DramRegion]] = {".input": [], ".output": []}
    constants: list[tuple[int, float]] = []
    instructions: list[NpuInstruction] = []
    notes: list[tuple[int, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        code, _, note = line.partition("#")
        words, where = code.split(), f"line {number}: {line.strip()}"
        if not words:
            continue
        if words[0] in regions:
            regions[words[0]].append(_parse_region(words, where))
        elif words[0] == ".const":
            constants.append(_parse_constant(words, where))
        else:
            if note.strip():
                notes.append((len(instructions), note.strip()))
            instructions.append(parse_instruction(words, where))
    return NpuProgram(
        tuple(instructions),
        tuple(regions[".input"]),
        tuple(regions[".output"]),
        tuple(constants),
        tuple(notes),
    )


def parse_instruction(words: list[str], where: str) -> NpuInstruction:
    """One instruction from its words. Raises NPUError as `parse`."""
    op, *rest = words
    form = FORMS.get(op)
    if form is None:
        raise NPUError(
            f"unknown opcode {op!r}", where=where, hint=f"known: {', '.join(FORMS)}"
        )
    memory, address = "", 0
    if form.memories:
        memory, address = _place(rest.pop(0) if rest else "", where)
        if memory not in form.memories:
            raise NPUError(
                f"{op} cannot use {memory}",
                where=where,
                hint=f"it uses {' or '.join(form.memories)}",
            )
    values: dict[str, int] = {}
    for word in rest:
        found = _FIELD.match(word)
        if found is None or found[1] not in form.fields or found[1] in values:
            known = ", ".join(form.fields) or "none"
            raise NPUError(
                f"unexpected {word!r}", where=where, hint=f"fields of {op}: {known}"
            )
        values[found[1]] = int(found[2])
    missing = [
        f for f in form.fields if f not in values and f not in ("step", "across")
    ]
    if missing:
        hint = f"as in {missing[0]}=32"
        raise NPUError(f"{op} needs {' and '.join(missing)}", where=where, hint=hint)
    return NpuInstruction(op, memory, address, **values)


def _place(word: str, where: str) -> tuple[str, int]:
    found = _PLACE.match(word)
    if found is None:
        raise NPUError(
            f"{word!r} is not a place in memory", where=where, hint="as in vrf[128]"
        )
    return found[1], int(found[2])


def _parse_region(words: list[str], where: str) -> DramRegion:
    if len(words) != 4:
        raise NPUError(
            "expected a name, a place, a shape", where=where, hint="x dram[0] 4x32"
        )
    memory, address = _place(words[2], where)
    sizes = words[3].split("x")
    if memory != "dram" or not all(s.isdigit() for s in sizes):
        raise NPUError(
            "expected a place in dram and a shape", where=where, hint="x dram[0] 4x32"
        )
    return DramRegion(words[1], address, tuple(map(int, sizes)))


def _parse_constant(words: list[str], where: str) -> tuple[int, float]:
    try:
        value = float(words[2])
    except (IndexError, ValueError):
        value = float("nan")
    if isnan(value) or len(words) != 3:
        raise NPUError(
            "expected a place and a number", where=where, hint=".const dram[64] 0.5"
        )
    return _place(words[1], where)[1], value
