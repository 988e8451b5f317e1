"""Machines by name, and the files that describe them: TOML, with the names of its fields.

name = "example"
number = "Float16"                            # Float32 if left out
block = { size = 16, mantissa = 7 }           # may be left out, as transfer
dram = { capacity = 16777216, bandwidth = 32, latency = 40, energy = 20 }
vectors = { capacity = 16384, bandwidth = 128, latency = 1, energy = 1 }
matrices = { capacity = 262144, bandwidth = 256, latency = 2, energy = 1 }

[[operators]]                                 # as `machine.operators` makes them
names = ["VVAdd", "VVMul"]
sizes = [32, 128]
lanes = 64
latency = 4

[[operators]]                                 # one row, as Operator
name = "MMMul"
sizes = [64, 64, 64]
issue = 2
interval = 128
latency = 20
energy = 80000
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from tilewright.base.errors import ArgumentError, InputError, placed
from tilewright.base.text import reason
from tilewright.targets.npu.catalog import MACHINES
from tilewright.targets.npu.machine import (
    MachineOperator,
    Memory,
    NpuMachine,
    operators,
)
from tilewright.targets.npu.numbers import BlockFloat, Float8, Float16, Float32

_LARGEST = 1 << 20
_NUMBERS = {n.name: n for n in (Float8, Float16, Float32)}


def machine(name: str) -> NpuMachine:
    """A machine of the catalog, or from a file.

    Raises InputError for a name that is neither, and for a file that does not describe a machine.
    """
    if name in MACHINES:
        return MACHINES[name]
    path = Path(name)
    try:
        known = path.is_file()
    except OSError:  # a name that is too long
        known = False
    if not known:
        raise ArgumentError(
            f"there is no machine and no file {name!r}",
            hint=f"one of {', '.join(MACHINES)}, or a file that describes one",
        )
    try:
        if path.stat().st_size > _LARGEST:
            raise InputError(f"a description has at most {_LARGEST:,} bytes")
        return from_table(tomllib.loads(path.read_text()))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"it cannot be read: {reason(error)}", where=name) from None
    except InputError as error:
        raise error.at(name) from None


def from_table(given: Mapping[str, Any]) -> NpuMachine:
    """The machine that a table describes. Raises InputError for one that describes none."""
    known = [f.name for f in fields(NpuMachine)]
    needed = [f.name for f in fields(NpuMachine) if f.default is MISSING]
    _check_keys(given, known, needed, "the machine")
    made = dict(given)
    for name in ("dram", "vectors", "matrices"):
        made[name] = _call(Memory, given[name], name)
    if "block" in given:
        made["block"] = _call(BlockFloat, given["block"], "block")
    if "number" in given:
        made["number"] = _number(given["number"])
    made["operators"] = tuple(_operators(given["operators"]))
    return NpuMachine(**made)


def _number(name: Any) -> Any:
    if not isinstance(name, str) or name not in _NUMBERS:
        raise InputError(f"number is {name!r}", hint=f"one of {', '.join(_NUMBERS)}")
    return _NUMBERS[name]


def _operators(tables: Any) -> Iterator[MachineOperator]:
    if not isinstance(tables, list):
        raise InputError(f"operators is {tables!r}, expected [[operators]] tables")
    for number, table in enumerate(tables, 1):
        where = f"operators {number}"
        if isinstance(table, dict) and "names" in table:
            yield from _call(operators, table, where)
        else:
            yield _call(MachineOperator, table, where)


def _call(make: Callable[..., Any], table: Any, where: str) -> Any:
    """Call something with a table's entries as its arguments."""
    if not isinstance(table, dict):
        raise InputError(f"{where} is {table!r}, expected a table")
    arguments = signature(make).parameters
    needed = [n for n, p in arguments.items() if p.default is Parameter.empty]
    _check_keys(table, list(arguments), needed, where)
    for name, value in table.items():
        if name in ("names", "sizes") and not isinstance(value, list):
            raise InputError(f"{name} is {value!r}, expected a list", where=where)
    with placed(where):
        return make(
            **{n: tuple(v) if isinstance(v, list) else v for n, v in table.items()}
        )


def _check_keys(
    given: Mapping[str, Any], known: Sequence[str], needed: Sequence[str], where: str
) -> None:
    for name in given:
        if name not in known:
            raise InputError(
                f"{where} has no {name!r}", hint=f"it has {', '.join(known)}"
            )
    missing = [name for name in needed if name not in given]
    if missing:
        raise InputError(
            f"{where} has no {', '.join(missing)}, which cannot be left out"
        )
