"""The instruction set, after BrainWave (Fowers et al., ISCA 2018): chains from memory to memory.

A chain carries one value from unit to unit. What is read first in it are the parts of that value,
one after the other; then come operators; then it is written; `end_chain` ends it.

    v_rd     mem[a] n= step=               n elements, `step` apart (0: one, n times)
    m_rd     mem[a] rows= columns= step= across=   rows `step` apart, elements `across` apart
    mv_mul   mrf[a] rows= columns=         the matrix there times the vector of the chain
    mm_mul   mrf[a] rows= columns=         the matrix of the chain times the one there
    mv_add   vrf[a] n=                     the vector there is added to every row of the chain
    vv_add, vv_sub, vv_mul, vv_max   vrf[a] n= step=
    v_relu, v_tanh, v_sigm, v_exp, v_recip, v_sum, v_top   on the vector of the chain
    v_wr     mem[a] n=
    m_wr     mem[a] rows= columns=         with zeros to the right and below if it is smaller
    end_chain

Operands of vv_ come from the vector registers, those of mv_mul and mm_mul from the matrix
registers. Addresses count elements. `mem` is dram, vrf (vectors) or mrf (matrices).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tilewright.base.dataclass import dataclass

MEMORIES = ("dram", "vrf", "mrf")
_VECTOR, _BLOCK, _TILE = (
    ("n", "step"),
    ("rows", "columns", "step", "across"),
    ("rows", "columns"),
)


@dataclass(frozen=True, slots=True)
class OpcodeForm:
    """How an opcode is written: where its operand may be, and the fields that it has."""

    memories: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()


FORMS: Mapping[str, OpcodeForm] = {
    "v_rd": OpcodeForm(("dram", "vrf"), _VECTOR),
    "m_rd": OpcodeForm(("dram", "vrf", "mrf"), _BLOCK),
    "mv_mul": OpcodeForm(("mrf",), _TILE),
    "mm_mul": OpcodeForm(("mrf",), _TILE),
    "mv_add": OpcodeForm(("vrf",), _VECTOR),
    **dict.fromkeys(
        ("vv_add", "vv_sub", "vv_mul", "vv_max"), OpcodeForm(("vrf",), _VECTOR)
    ),
    **dict.fromkeys(
        ("v_relu", "v_tanh", "v_sigm", "v_exp", "v_recip", "v_sum", "v_top"),
        OpcodeForm(),
    ),
    "v_wr": OpcodeForm(("dram", "vrf"), ("n",)),
    "m_wr": OpcodeForm(("dram", "vrf", "mrf"), _TILE),
    "end_chain": OpcodeForm(),
}

# The operator of the machine that an opcode uses.
OPERATORS: Mapping[str, str] = {
    "vv_add": "VVAdd", "vv_sub": "VVSub", "vv_mul": "VVMul", "vv_max": "VVMax",
    "v_relu": "VVRelu", "v_tanh": "VVTanh", "v_sigm": "VVSigm", "v_exp": "VVExp",
    "v_recip": "VVRecip", "v_sum": "VReduceAdd", "v_top": "VReduceMax",
    "mv_mul": "MVMul", "mv_add": "MVAdd", "mm_mul": "MMMul",
}  # fmt: skip
OPCODES: Mapping[str, str] = {name: opcode for opcode, name in OPERATORS.items()}


class NpuInstruction(NamedTuple):
    """One instruction; fields that its form does not have stay unchanged here."""

    op: str
    memory: str = ""
    address: int = 0
    n: int = 0
    step: int = 1
    rows: int = 0
    columns: int = 0
    across: int = 1

    @property
    def operands(self) -> dict[str, int]:
        """The fields that its form has, by name."""
        return {name: getattr(self, name) for name in FORMS[self.op].fields}

    def __str__(self) -> str:
        defaults = self._field_defaults
        words = [self.op]
        if self.memory:
            words.append(f"{self.memory}[{self.address}]")
        words += [f"{k}={v}" for k, v in self.operands.items() if v != defaults[k]]
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class DramRegion:
    """An input or output in DRAM, dense and row by row."""

    name: str
    address: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NpuProgram:
    """Instructions, and the contents of DRAM before and after them.

    constants: addresses and the numbers at them. notes: a comment for some instructions, by index.
    """

    instructions: tuple[NpuInstruction, ...]
    inputs: tuple[DramRegion, ...]
    outputs: tuple[DramRegion, ...]
    constants: tuple[tuple[int, float], ...] = ()
    notes: tuple[tuple[int, str], ...] = ()
