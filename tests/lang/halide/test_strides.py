"""Promised strides: images and outputs whose channels are neighbors in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright import halide as hl
from tilewright.base.errors import InputError, UnsupportedError
from tilewright.base.events import record

WIDTH, HEIGHT = 20, 6
rgb = np.random.default_rng(1).integers(0, 256, (HEIGHT, WIDTH, 3)).astype(np.uint8)


def pipeline(m: Any, inputs: bool = True, outputs: bool = True) -> tuple[Any, Any]:
    image = m.ImageParam(m.UInt(8), 3, "image")
    x, y, c = m.Var("x"), m.Var("y"), m.Var("c")
    f = m.Func("f")
    f[x, y, c] = m.u8((m.i32(image[x, y, c]) + image[x, y, 2 - c]) // 2)
    f.reorder(c, x, y).bound(c, 0, 3).unroll(c)
    image.dim(2).set_bounds(0, 3)
    for there, buffer in ((inputs, image), (outputs, f.output_buffer())):
        if there:
            buffer.dim(0).set_stride(3)
            buffer.dim(2).set_stride(1)
    return image, f


WANTED = ((rgb.astype(int) + rgb[..., ::-1]) // 2).astype(np.uint8)


@pytest.mark.parametrize("inputs", [False, True])
@pytest.mark.parametrize("outputs", [False, True])
def test_channels_are_neighbors(inputs: bool, outputs: bool) -> None:
    image, f = pipeline(hl, inputs, outputs)
    image.set(hl.Buffer(rgb.transpose(2, 0, 1)))
    found = f.realize([WIDTH, HEIGHT, 3])
    np.testing.assert_array_equal(np.asarray(found).transpose(1, 2, 0), WANTED)
    assert found.dim(0).stride() == (3 if outputs else 1)
    kernel = f.kernel([WIDTH, HEIGHT, 3])
    [read], [made] = kernel.inputs, kernel.outputs
    here, planes = (HEIGHT, WIDTH, 3), (3, HEIGHT, WIDTH)
    assert (read.shape, made.shape) == (
        here if inputs else planes,
        here if outputs else planes,
    )


def test_nothing_is_copied() -> None:
    image, f = pipeline(hl)
    out = hl.Buffer.make_interleaved(hl.UInt(8), WIDTH, HEIGHT, 3)
    image.set(hl.Buffer(rgb.transpose(2, 0, 1)))
    with record() as events:
        f.realize(out)
        function = f.compile_jit([WIDTH, HEIGHT, 3])
        direct = np.zeros_like(rgb)
        function(rgb, direct)
    assert not [e for e in events if e.kind == "copy"]
    np.testing.assert_array_equal(np.asarray(out).transpose(1, 2, 0), WANTED)
    np.testing.assert_array_equal(direct, WANTED)


def test_as_in_halide() -> None:
    theirs = pytest.importorskip("halide")
    image, f = pipeline(theirs)
    made = theirs.Buffer.make_interleaved(theirs.UInt(8), WIDTH, HEIGHT, 3)
    np.asarray(made).transpose(1, 2, 0)[...] = 0
    source = theirs.Buffer.make_interleaved(theirs.UInt(8), WIDTH, HEIGHT, 3)
    for y, x, c in np.ndindex(rgb.shape):
        source[x, y, c] = int(rgb[y, x, c])
    image.set(source)
    f.realize(made)
    values = [
        [[made[x, y, c] for c in range(3)] for x in range(WIDTH)] for y in range(HEIGHT)
    ]
    np.testing.assert_array_equal(values, WANTED)


def test_a_promise_is_part_of_the_program() -> None:
    image, f = pipeline(hl, False, False)
    image.set(hl.Buffer(rgb.transpose(2, 0, 1)))
    planes = f.realize([WIDTH, HEIGHT, 3])
    f.output_buffer().dim(0).set_stride(3)
    f.output_buffer().dim(2).set_stride(1)
    again = f.realize([WIDTH, HEIGHT, 3])
    assert (planes.dim(0).stride(), again.dim(0).stride()) == (1, 3)
    np.testing.assert_array_equal(np.asarray(planes), np.asarray(again))


@pytest.mark.parametrize(
    "strides, problem",
    [
        ({0: 4, 2: 1}, "a stride of 4 along dimension 0, where 3 is dense"),
        ({0: 3}, "where 1"),
    ],
)
def test_room_between_rows_is_refused(strides: dict[int, int], problem: str) -> None:
    image, f = pipeline(hl, False, False)
    for n, stride in strides.items():
        image.dim(n).set_stride(stride)
    with pytest.raises(UnsupportedError, match=problem):
        f.kernel([WIDTH, HEIGHT, 3])
    with pytest.raises(InputError, match="the stride 0"):
        image.dim(0).set_stride(0)


def test_dense_promises_change_nothing() -> None:
    image, f = pipeline(hl, False, False)
    plain = repr(f.kernel([WIDTH, HEIGHT, 3]))
    image.dim(0).set_stride(1)
    f.output_buffer().dim(0).set_stride(1)
    assert repr(f.kernel([WIDTH, HEIGHT, 3])) == plain
