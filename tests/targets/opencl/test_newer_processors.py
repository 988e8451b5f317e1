"""A driver that is older than the processor: what is done about PoCL, and what is said."""

from __future__ import annotations

import ctypes
import platform
from types import SimpleNamespace

import pytest

from tests.targets.opencl.fake import DEVICE, FakeOpenCL
from tests.targets.opencl.running import launched
from tilewright.base.dtypes import float32
from tilewright.base.errors import ArtifactError, TilewrightWarning
from tilewright.expr.nodes import Buffer
from tilewright.loops.nodes import Block
from tilewright.targets.opencl import device as module
from tilewright.targets.opencl import newer_processors
from tilewright.targets.opencl.device import OpenCLDevice
from tilewright.targets.opencl.emit import emit
from tilewright.targets.opencl.newer_processors import KNOWN, REFUSED, rename, renamed

CODE = emit(launched(Block(()), [Buffer("x", (4,), float32)])).to_bytes()
LOG = "error: unknown target CPU 'generic'"
POCL = "Portable Computing Language"
SYSTEM = b"x86_64-unknown-linux-gnu"


class Description:
    """Words as PoCL has them: texts by their addresses, and numbers."""

    def __init__(self, *words: bytes | int) -> None:
        self.texts = [
            w if isinstance(w, int) else ctypes.create_string_buffer(w) for w in words
        ]
        numbers = [t if isinstance(t, int) else ctypes.addressof(t) for t in self.texts]
        self.words = (ctypes.c_uint64 * 512)(*numbers)
        self.address = ctypes.addressof(self.words)

    def has(self, n: int) -> bytes:
        text = self.texts[n]
        assert not isinstance(text, int)
        return bytes(text.value)


def pocl(name: str, description: Description) -> SimpleNamespace:
    return SimpleNamespace(
        platform=SimpleNamespace(name=POCL),
        name=name,
        int_ptr=description.address,
        keeps=description,
    )


@pytest.fixture
def x86(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")


def test_the_name_behind_that_of_the_system_is_replaced():
    made = Description(1, 2**64 - 1, b"generic", SYSTEM, b"generic", b"generic")
    assert rename(made.address)
    assert [made.has(n) for n in (2, 4, 5)] == [b"generic", KNOWN[:-1], b"generic"]
    assert len(KNOWN) <= len(REFUSED)
    assert not rename(made.address)


@pytest.mark.parametrize(
    "words",
    [
        (SYSTEM, b"generics"),
        (SYSTEM, b"znver4"),
        (SYSTEM, 7, b"generic"),
        (b"aarch64-unknown-linux-gnu", b"generic"),
        (b"generic", SYSTEM),
    ],
    ids=str,
)
def test_a_description_of_another_form_is_left_alone(words):
    made = Description(*words)
    assert not rename(made.address)
    kept = [w for w in words if isinstance(w, bytes)]
    assert [bytes(t.value) for t in made.texts if not isinstance(t, int)] == kept


@pytest.mark.usefixtures("x86")
def test_it_is_said_once():
    device = pocl("pthread-AMD EPYC", Description(SYSTEM, b"generic"))
    with pytest.warns(TilewrightWarning, match="newer than PoCL's compiler") as told:
        assert renamed(device)
    assert len(told) == 1
    assert not renamed(device)


@pytest.mark.usefixtures("x86")
@pytest.mark.parametrize("name", ["pthread-Intel Xeon", "cuda-AMD", "basic"])
def test_devices_of_other_makers_are_left_alone(name):
    made = Description(SYSTEM, b"generic")
    assert not renamed(pocl(name, made))
    assert made.has(1) == b"generic"


def test_other_processors_are_left_alone(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    made = Description(SYSTEM, b"generic")
    assert not renamed(pocl("pthread-AMD EPYC", made))
    assert made.has(1) == b"generic"


@pytest.mark.usefixtures("x86")
def test_a_system_that_shows_no_memory_is_left_alone(monkeypatch):
    def hidden(address: int) -> bool:
        raise OSError("no /proc")

    monkeypatch.setattr(newer_processors, "rename", hidden)
    assert not renamed(pocl("pthread-AMD EPYC", Description(SYSTEM, b"generic")))


@pytest.mark.parametrize(
    ("logs", "can", "hint"),
    [
        ([LOG], True, ""),
        ([LOG], False, "install a newer driver"),
        ([LOG, LOG], True, "install a newer driver"),
        (["error: expected ';'"], True, None),
    ],
)
def test_it_is_built_once_more_only_if_the_name_was_refused(
    monkeypatch, logs, can, hint
):
    api, asked = FakeOpenCL(), []
    monkeypatch.setattr(module, "imported", lambda: api)
    monkeypatch.setattr(module, "default_store", lambda: None)
    monkeypatch.setattr(module, "renamed", lambda d: asked.append(d) or can)
    api.fails["build"] = list(logs)
    device = OpenCLDevice(DEVICE)
    if hint == "":
        device.load(CODE)
        assert asked == [DEVICE]
        return
    with pytest.raises(ArtifactError) as caught:
        device.load(CODE)
    assert caught.value.code == "TW-DEVICE-BUILD"
    assert asked == ([DEVICE] if LOG in logs else [])
    assert (caught.value.hint is None) == (hint is None)
    assert hint is None or hint in caught.value.hint
