"""gdb's JIT interface: the library that holds its symbols, the entries, and gdb itself if here."""

import ctypes
import os
import shutil
import subprocess
import sys

import pytest

from tests.runtime import native
from tests.waiting import PATIENCE
from tilewright.runtime import elf, gdb
from tilewright.runtime.loader import link

PROGRAM = """
import numpy as np
from tests.runtime import native
from tilewright.runtime.executable import Executable
Executable(native.model(), threads=1)(np.ones(100, np.float32))
"""


def test_every_object_is_registered_with_its_addresses(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_GDB", "on")
    code = native.assemble("define i32 @f() {\n ret i32 7\n}")
    before = len(gdb._entries)
    image = link([code, native.assemble("define i32 @g() {\n ret i32 8\n}")])
    assert len(gdb._entries) == before + 2
    _, descriptor = gdb._library()
    assert descriptor.version == 1
    assert descriptor.first.contents.next.contents.size == len(code)
    assert descriptor.first.contents.next.contents.previous.contents.size > 0
    entry = gdb._entries[before]
    placed = ctypes.string_at(_file(entry), entry.size)
    headers = int.from_bytes(placed[40:48], "little")
    addresses = {
        int.from_bytes(placed[at + 16 : at + 24], "little")
        for at in range(headers, len(placed) - 63, 64)
    }
    assert image.address("f") in addresses
    assert elf.parse(placed).symbols == elf.parse(code).symbols


def _file(entry):
    """The address in the entry, which as bytes would end at the first zero."""
    return ctypes.c_void_p.from_address(ctypes.addressof(entry) + 16).value


def gdb_may_trace():
    """Whether gdb is here and may run a program: containers often forbid it."""
    if shutil.which("gdb") is None:
        return False
    command = [
        "gdb",
        "-q",
        "-batch",
        "-nx",
        "-ex",
        "run",
        "--args",
        sys.executable,
        "-c",
        "",
    ]
    result = subprocess.run(
        command, capture_output=True, timeout=PATIENCE, text=True, check=False
    )
    return "exited normally" in result.stdout


@pytest.mark.slow
def test_gdb_stops_at_a_kernel(tmp_path):
    if not gdb_may_trace():
        pytest.skip("gdb is not installed, or may not trace processes here")
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    commands = [
        "set breakpoint pending on",
        "break double_region",
        "run",
        "backtrace",
        "kill",
    ]
    options = [word for command in commands for word in ("-ex", command)]
    result = subprocess.run(
        [
            "gdb",
            "-q",
            "-batch",
            "-nx",
            *options,
            "--args",
            sys.executable,
            "-c",
            PROGRAM,
        ],
        env={
            **os.environ,
            "TILEWRIGHT_GDB": "1",
            "TMPDIR": str(tmp_path),
            "PYTHONPATH": f"{root}:{root}/src",
        },
        capture_output=True,
        timeout=PATIENCE,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert "in double_region ()" in result.stdout, result.stdout + result.stderr
