"""Machines by name and by file: the same as in Python, and what describes none is refused."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tilewright.base.errors import InputError
from tilewright.targets import npu
from tilewright.targets.npu.description import machine

TEXT = """
name = "example"
number = "Float16"
block = { size = 16, mantissa = 7 }
dram = { capacity = 16777216, bandwidth = 32, latency = 40, energy = 20 }
vectors = { capacity = 16384, bandwidth = 128, latency = 1, energy = 1 }
matrices = { capacity = 262144, bandwidth = 256, latency = 2, energy = 1 }

[[operators]]
names = ["VVAdd", "VVRelu"]
sizes = [32, 128]
lanes = 64
latency = 4

[[operators]]
name = "MMMul"
sizes = [64, 64, 64]
issue = 2
interval = 128
latency = 20
energy = 80000
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "example.toml"
    path.write_text(TEXT)
    return path


def test_a_file_is_the_machine_that_it_describes(file: Path) -> None:
    assert machine(str(file)) == npu.NpuMachine(
        "example",
        operators=(
            *npu.operators(("VVAdd", "VVRelu"), (32, 128), lanes=64, latency=4),
            npu.MachineOperator("MMMul", (64, 64, 64), 2, 128, 20, 80_000),
        ),
        dram=npu.Memory(16 << 20, 32, 40, 20),
        vectors=npu.Memory(16 << 10, 128, 1, 1),
        matrices=npu.Memory(256 << 10, 256, 2, 1),
        number=npu.Float16,
        block=npu.BlockFloat(16, 7),
    )


@pytest.mark.parametrize("name", npu.MACHINES)
def test_a_name_is_the_catalog_s(name: str) -> None:
    assert machine(name) is npu.MACHINES[name]


WRONG = {
    "no TOML": ("name", "nome ="),
    "unknown": ('name = "example"', 'name = "example"\nclock = 5'),
    "missing": ("dram = {", "dran = {"),
    "number": ("Float16", "Float64"),
    "block": ("size = 16", "size = 0"),
    "memory": ("capacity = 16384,", ""),
    "capacity": ("capacity = 16384", "capacity = -5"),
    "bandwidth": ("bandwidth = 32", "bandwidth = 0"),
    "infinite": ("bandwidth = 32", "bandwidth = inf"),
    "latency": ("latency = 40", "latency = 0.5"),
    "energy": ("energy = 20", 'energy = "much"'),
    "table": ("vectors = {", "vectors = 5 # {"),
    "lanes": ("lanes = 64", "lanes = 0"),
    "size": ("sizes = [32, 128]", "sizes = [32, 0]"),
    "sizes": ("sizes = [32, 128]", "sizes = 32"),
    "square": ("sizes = [64, 64, 64]", "sizes = [64, 64]"),
    "name": ("MMMul", "MMDiv"),
    "names": ('"VVRelu"', "5"),
    "nested": ('"VVRelu"', '["VVRelu"]'),
    "row": ('name = "MMMul"', 'name = ["MMMul"]'),
    "twice": ("sizes = [32, 128]", "sizes = [32, 32]"),
    "interval": ("interval = 128", "interval = 0"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_file_that_describes_no_machine(file: Path, name: str) -> None:
    before, after = WRONG[name]
    assert before in TEXT
    file.write_text(TEXT.replace(before, after, 1))
    with pytest.raises(InputError, match=re.escape(str(file))):
        machine(str(file))


def test_neither_a_name_nor_a_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no machine and no file.*one of full, wide"):
        machine(str(tmp_path / "gone.toml"))
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="cannot be read"):
        machine(str(tmp_path / "bytes.toml"))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a = " + "[" * 20_000 + "]" * 20_000, "cannot be read: maximum recursion"),
        ("#" * (1 << 20) + "\n", "at most 1,048,576 bytes"),
        ("\udcff", "cannot be read"),
    ],
)
def test_files_that_no_reader_takes(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "m.toml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError, match=why):
        machine(str(path))


def test_pipes_devices_and_endless_names_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in (
        str(tmp_path / "pipe"),
        "/dev/zero",
        str(tmp_path),
        "a" * 5000,
        "a\0b",
    ):
        with pytest.raises(InputError, match="no machine and no file"):
            machine(name)
