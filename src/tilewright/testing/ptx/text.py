"""The text of PTX as kernels: parameters, memory of a block and of a thread, instructions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import field
from typing import Final

from tilewright.base.dataclass import dataclass

_ENTRY: Final = re.compile(r"\.entry\s+([^\s(]+)\(")
_PARAM: Final = re.compile(r"\.param\b.*\s([^\s,]+?),?$")
_ARRAY: Final = re.compile(
    r"\.(shared|local|const) \.align (\d+) \.b8\s+([^\s\[]+)\[(\d*)\]"
)
_LINE: Final = re.compile(r"(?:@(!?)(%\w+)\s+)?([\w.:]+)\s*(.*);$")
_LOCAL: Final = re.compile(r"\{ \.reg \.\w+ \w+; (.*;) \}")  # around one instruction
_CLUSTER: Final = re.compile(r"\.reqnctapercluster\s+(\d+), (\d+), (\d+)")
_OPERAND: Final = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+")


@dataclass(frozen=True, slots=True)
class PtxInstruction:
    """`@guard op operands`; negated: it runs if the guard is false."""

    op: str
    operands: tuple[str, ...]
    guard: str = ""
    negated: bool = False


@dataclass(slots=True)
class PtxKernel:
    """One entry. shared, local, const: bytes of each array; alignments: of these; labels: numbers
    of instructions; cluster: how many blocks it has on each axis."""

    name: str
    params: list[str] = field(default_factory=list)
    shared: dict[str, int] = field(default_factory=dict)
    local: dict[str, int] = field(default_factory=dict)
    const: dict[str, int] = field(default_factory=dict)
    alignments: dict[str, int] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    code: list[PtxInstruction] = field(default_factory=list)
    cluster: tuple[int, int, int] = (1, 1, 1)


def kernels(text: str) -> dict[str, PtxKernel]:
    """The entries of a module, by name."""
    found: dict[str, PtxKernel] = {}
    extern: dict[str, int] = {}
    const: dict[str, int] = {}
    alignments: dict[str, int] = {}
    current: PtxKernel | None = None
    for line in _lines(text):
        if entry := _ENTRY.search(line):
            current = found[entry[1]] = PtxKernel(entry[1])
        elif current is None:
            if array := _ARRAY.search(line):
                of_module = const if array[1] == "const" else extern
                of_module[array[3]] = int(array[4] or 0)
                alignments[array[3]] = int(array[2])
        elif line == "}":
            current = None
        else:
            _read(current, line)
    for kernel in found.values():
        kernel.shared |= extern
        kernel.const |= const
        kernel.alignments |= alignments
    return found


def _lines(text: str) -> Iterator[str]:
    begun = ""
    for line in text.splitlines():
        line = begun + line.split("//")[0].strip()
        begun = ""
        if line.startswith("mma.") and not line.endswith(";"):
            begun = f"{line} "  # its operands are on their own lines
            continue
        if found := _LOCAL.fullmatch(line):
            line = found[1]
        if line:
            yield line


def _read(kernel: PtxKernel, line: str) -> None:
    if array := _ARRAY.search(line):
        if array[1] == "shared":
            memory = kernel.shared
        else:
            memory = kernel.local
        memory[array[3]] = int(array[4] or 0)
        kernel.alignments[array[3]] = int(array[2])
    elif cluster := _CLUSTER.fullmatch(line):
        x, y, z = map(int, cluster.groups())
        kernel.cluster = (x, y, z)
    elif line.startswith(".param"):
        found = _PARAM.search(line)
        assert found is not None
        kernel.params.append(found[1].split("[")[0])
    elif line.endswith(":"):
        kernel.labels[line[:-1]] = len(kernel.code)
    elif not line.startswith((".", ")", "{")):
        found = _LINE.match(line)
        if found is None:
            raise NotImplementedError(f"PTX {line!r}")
        operands = tuple(_OPERAND.findall(found[4]))
        kernel.code.append(
            PtxInstruction(found[3], operands, found[2] or "", found[1] == "!")
        )


def names_in(text: str) -> list[str]:
    """The registers of an operand: one, or several in braces."""
    inner = text.strip("{}")
    return [part.strip() for part in inner.split(",")]
