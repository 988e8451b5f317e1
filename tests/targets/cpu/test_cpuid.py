"""What a library asks the processor: as the system's own list of features has it."""

from __future__ import annotations

import ctypes
import platform

import pytest

from tilewright.runtime.loader import CodeImage, link
from tilewright.runtime.machine import missing_features
from tilewright.targets.cpu.cpuid import FEATURES, processor_text
from tilewright.targets.cpu.processors import LEVELS
from tilewright.targets.llvm import backend

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="asks a processor of x86-64"
)
ASKED = sorted(FEATURES)


def _chosen(image: CodeImage, name: str) -> int:
    return int(ctypes.CFUNCTYPE(ctypes.c_int32)(image.address(name))())


@pytest.fixture(scope="module")
def image() -> CodeImage:
    texts = [
        processor_text(f"f{n}", f"has{n}", [[feature]], "")
        for n, feature in enumerate(ASKED)
    ]
    levels = [
        f for a, f in LEVELS.values() if a == "x86_64" and set(f) <= set(FEATURES)
    ]
    texts.append(processor_text("l", "level", levels[::-1], ""))
    texts.append(processor_text("n", "nothing", [], ""))
    text = "\n".join(texts).replace("internal i32 @", "i32 @")
    target = backend.target_machine("x86_64-unknown-linux-gnu", "", "", 2)
    module = backend.module_of(text, target, "cpuid")
    return link([bytes(target.emit_object(module))])


@pytest.mark.parametrize("number", range(len(ASKED)))
def test_each_feature(image: CodeImage, number: int) -> None:
    expected = not missing_features([ASKED[number]])
    assert _chosen(image, f"has{number}") == expected
    assert _chosen(image, f"has{number}") == expected  # as it was kept


def test_the_first_level_that_fits(image: CodeImage) -> None:
    levels = [
        f for a, f in LEVELS.values() if a == "x86_64" and set(f) <= set(FEATURES)
    ]
    fits = [n for n, f in enumerate(levels[::-1], 1) if not missing_features(f)]
    assert _chosen(image, "level") == (fits[0] if fits else 0)
    assert _chosen(image, "nothing") == 0
