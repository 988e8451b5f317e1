"""A driver that is older than the processor: what users are told, and what the tests do."""

from __future__ import annotations

import ctypes

import pytest

from tests.pocl import KNOWN, REFUSED, rename
from tests.targets.opencl.running import launched, pocl
from tilewright.base.dtypes import float32
from tilewright.base.errors import ArtifactError
from tilewright.expr.nodes import Buffer
from tilewright.loops.nodes import Block
from tilewright.targets.opencl.emit import emit


@pytest.mark.parametrize(
    ("log", "hint"),
    [
        ("error: unknown target CPU 'generic'", "install a newer driver"),
        ("error: expected ';'", None),
    ],
)
def test_the_error_says_what_to_install(monkeypatch, log, hint):
    device = pocl()

    def refused(*_):
        raise device.cl.Error(log)

    monkeypatch.setattr(device, "_quietly", refused)
    code = emit(launched(Block(()), [Buffer("x", (4,), float32)]))
    with pytest.raises(ArtifactError) as caught:
        device.load(code.to_bytes())
    assert caught.value.code == "TW-DEVICE-BUILD"
    assert (caught.value.hint is None) == (hint is None)
    assert hint is None or hint in caught.value.hint


def test_only_the_refused_name_is_replaced():
    names = [ctypes.create_string_buffer(n) for n in (b"generic", b"generics", b"zen")]
    words = [1, *map(ctypes.addressof, names), 2**64 - 1]
    description = (ctypes.c_uint64 * 512)(*words)
    rename(ctypes.addressof(description))
    assert [n.raw[:8] for n in names] == [
        KNOWN + REFUSED[len(KNOWN) :],
        b"generics",
        b"zen\0",
    ]
