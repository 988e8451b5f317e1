"""Packing as data: its arithmetic, registers and blocks, and what is refused."""

import json

import numpy as np
import pytest

from tilewright.runtime import packing, schema
from tilewright.runtime.packing import Packing, PackingPart

STEPS = (
    ("add", 0, 1),  # 2
    ("scale", 2, 0.5),  # 3
    ("subtract", 3, 0),  # 4: 2 is free
    ("add", 4, 1),  # 5
)


def run(part, weight, size):
    result = np.full(size * 4, 0xAB, np.uint8)
    Packing((part,)).run(weight.view(np.uint8), result, np.dtype(np.float32))
    return result.view(np.float32)


@pytest.mark.parametrize("block", [1, 4, 30, 1 << 15])
def test_blocks_of_any_size_compute_the_same(block, monkeypatch):
    monkeypatch.setattr(packing, "_BLOCK", block)
    weight = np.arange(60, dtype=np.float32) ** 2
    part = PackingPart(
        (5, 3, 2), (0, 1), (12, 4, 2), STEPS, ((5, 0), (1, 3), (3, 6)), (9, 1, 45)
    )
    x = weight.reshape(5, 3, 2, 2)
    half = (x[..., 0] + x[..., 1]) * np.float32(0.5)
    made = np.ndarray(
        (3, 5, 3, 2), np.float32, run(part, weight, 90), 0, (12, 36, 4, 180)
    )
    np.testing.assert_array_equal(made[0], half - x[..., 0] + x[..., 1])
    np.testing.assert_array_equal(made[1], x[..., 1])
    np.testing.assert_array_equal(made[2], half)


@pytest.mark.parametrize(
    ("extents", "outer"),
    [
        ((8, 2, 512, 2, 16), 1),
        ((8, 2, 512, 4, 16), 2),
        ((3,), 0),
        ((1 << 20,), 0),
        ((5, 1 << 20), 1),
        ((5, (1 << 15) + 1, 2), 1),  # two elements at a time would take long
    ],
)
def test_blocks_are_whole_axes_of_about_a_cache(extents, outer):
    assert packing._outer(extents) == outer


def test_memory_of_registers_is_reused_when_nothing_reads_it_any_more():
    part = PackingPart((2,), (0, 1), (2,), STEPS, ((5, 0),), (1,))
    assert packing._places(part) == [0, 1, 2, 3, 2, -1]
    # A result that is made in its place is read there, and an element that is a result stays.
    part = PackingPart((2,), (0, 1), (2,), STEPS, ((2, 0), (1, 2), (5, 4)), (1,))
    assert packing._places(part) == [0, 1, -1, 2, 3, -1]
    weight = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(run(part, weight, 6), [1, 5, 1, 3, 1.5, 3.5])


@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "complex128"])
def test_elements_of_any_type_are_moved(dtype):
    weight = np.arange(6).astype(dtype)
    result = np.empty(weight.nbytes, np.uint8)
    turned = Packing((PackingPart((3, 2), (0,), (1, 3), (), ((0, 0),), (2, 1)),))
    turned.run(weight.view(np.uint8), result, weight.dtype)
    np.testing.assert_array_equal(
        result.view(dtype), weight.reshape(2, 3).T.reshape(-1)
    )


def test_nan_is_moved_bit_by_bit():
    weight = np.array([0x7FA00001, 0xFFC12345], np.uint32)
    part = PackingPart((2,), (0,), (1,), (), ((0, 0),), (1,))
    assert run(part, weight, 2).view(np.uint32).tolist() == weight.tolist()


def test_json_both_ways():
    part = PackingPart(
        (5, 3, 2), (0, 1), (12, 4, -2), STEPS, ((5, 0), (1, 30)), (6, 2, 1)
    )
    made = Packing((part,))
    data = json.loads(json.dumps(made.to_json()))
    schema.check(data, packing.SHAPE)
    assert Packing.from_json(data) == made


@pytest.mark.parametrize(
    "change",
    [
        {"strides": (1,)},
        {"into": (1, 1, 1)},
        {"steps": (("add", 0, 2),)},
        {"steps": (("add", 0, 0.5),)},
        {"steps": (("scale", 2, 0.5),)},
        {"writes": ((6, 0),)},
        {"writes": ()},
    ],
)
def test_what_is_no_packing(change):
    fields = {
        "extents": (2, 2), "reads": (0, 1), "strides": (1, 2), "steps": STEPS,
        "writes": ((5, 0),), "into": (2, 1),
    }  # fmt: skip
    Packing.from_json(Packing((PackingPart(**fields),)).to_json())
    with pytest.raises(ValueError, match=r"axes|registers"):
        Packing.from_json(Packing((PackingPart(**(fields | change)),)).to_json())


@pytest.mark.parametrize(("first", "at"), [(1, 0), (0, 1), (-1, 0)])
def test_a_packing_that_leaves_the_weight_or_the_result_is_refused(first, at):
    part = PackingPart((4,), (first,), (1,), (), ((0, at),), (1,))
    with pytest.raises(ValueError, match=r"strides|offset|buffer"):
        run(part, np.zeros(4, np.float32), 4)
