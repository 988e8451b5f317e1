"""Kernels of a range that compute everything at once: which loops threads share, and vectors."""

from __future__ import annotations

from typing import Any

import pytest

import tilewright as tw
from tests.driver.ranges.test_positions import agree, of_one_image
from tilewright.driver.ranges import open_code
from tilewright.loops.nodes import Kernel
from tilewright.loops.walk import loops_of
from tilewright.schedule.full_tiles import full_tiles

MEAN: Any = [
    ("Conv", {}, (128, 16, 1, 1)),
    ("Conv", {"pads": [1] * 4}, (128, 128, 3, 3)),
    ("GlobalAveragePool", {}, ()),
]


def whole_kernels(
    monkeypatch: pytest.MonkeyPatch, source: Any, most: int
) -> tuple[Any, dict[str, Kernel]]:
    """The executable for widths up to `most`, and its kernels that are not parted."""
    found: dict[str, Kernel] = {}

    def kept(kernel: Kernel) -> Kernel:
        found[kernel.name] = kernel
        return full_tiles(kernel)

    monkeypatch.setattr(open_code, "full_tiles", kept)
    monkeypatch.setattr(open_code, "workers", lambda *_: 1)
    dims = {"h": (6, 12), "w": (6, most)}
    exe = tw.compile(source, dims=dims, jit=False, cache=False, threads=2)
    return exe, found


def kinds(kernels: dict[str, Kernel], name: str) -> set[str]:
    """Those of the loops of the kernels whose names contain one."""
    found = [k for n, k in kernels.items() if name in n]
    assert found
    return {f.kind for k in found for f in loops_of(k.body)}


@pytest.mark.parametrize(("most", "shared"), [(12, False), (300, True)])
def test_threads_share_a_kernel_that_is_worth_it_at_the_greatest_sizes(
    monkeypatch: pytest.MonkeyPatch, most: int, shared: bool
) -> None:
    """A border is written in less time than another thread needs to wake, if the image is small."""
    exe, found = whole_kernels(monkeypatch, of_one_image(MEAN), most)
    assert ("parallel" in kinds(found, "halo")) == shared
    assert ("parallel" in kinds(found, "average")) == shared
    agree(exe, of_one_image(MEAN), (6, 6), (7, 12))


def test_means_of_images_are_in_vectors_along_channels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The channels are the last axis of more than one element."""
    _, found = whole_kernels(monkeypatch, of_one_image(MEAN), 12)
    (mean,) = (k for n, k in found.items() if "average" in n)
    inner = [f for f in loops_of(mean.body) if f.kind == "vector"]
    assert len(inner) == 3 and {f.trips for f in inner} <= {4, 8, 16}
