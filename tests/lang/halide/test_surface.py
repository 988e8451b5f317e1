"""Buffers to compute into, what a Func tells of itself, and names of Halide's that are not here."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import halide as hl
from tilewright.base.errors import InputError, UnsupportedError

x, y = hl.vars("x y")


def plus():
    f = hl.Func("f")
    f[x, y] = x + 10 * y
    return f


def test_a_region_by_its_mins():
    found = plus().realize([(3, 4), (-2, 5)])
    columns, rows = np.meshgrid(np.arange(3, 7), np.arange(-2, 3))
    np.testing.assert_array_equal(found, columns + 10 * rows)
    assert found[6, 2] == 26
    assert (found.left(), found.right(), found.top(), found.bottom()) == (3, 6, -2, 2)


def test_into_a_part_of_a_buffer():
    whole = hl.Buffer(hl.Int(32), [8, 6])
    whole.fill(-1)
    part = whole.cropped(0, 2, 3).cropped(1, 1, 4)
    assert plus().realize(part) is None
    array = np.asarray(whole)
    assert (
        array[1:5, 2:5] == np.add.outer(np.arange(1, 5) * 10, np.arange(2, 5))
    ).all()
    assert (array == -1).sum() == 8 * 6 - 3 * 4
    other = part.copy()
    other.translate([1, 1])
    assert other[3, 2] == part[2, 1] and other.number_of_elements() == 12
    with pytest.raises(InputError, match=r"0..2 of dimension 0 is not in 2..4"):
        part.cropped(0, 0, 3)


def test_a_program_is_compiled_once():
    f = plus()
    one = f.compile_jit([4, 4])
    assert f.compile_jit([4, 4]) is one
    assert f.compile_jit([4, 5]) is not one
    f.vectorize(x, 4)
    assert f.compile_jit([4, 4]) is not one
    f[x, 0] = 7
    assert np.asarray(f.realize([4, 4]))[0].tolist() == [7] * 4


@pytest.mark.parametrize(
    "into, message",
    [
        (lambda: [hl.Buffer(hl.Int(32), [4, 4])] * 2, "2 buffers given, 1 expected"),
        (lambda: hl.Buffer(hl.Int(16), [4, 4]), "int16"),
        (lambda: hl.Buffer(hl.Int(32), [4]), "2 dimensions, and 1 sizes"),
    ],
    ids=["number", "type", "rank"],
)
def test_buffers_that_do_not_fit(into, message):
    with pytest.raises(InputError, match=message):
        plus().realize(into())


def test_the_buffers_of_a_tuple_have_one_region():
    f = hl.Func("f")
    f[x] = (x, x * 2)
    with pytest.raises(InputError, match=r"value 1 is needed over \[\(0, 5\)\]"):
        f.realize([hl.Buffer(hl.Int(32), [4]), hl.Buffer(hl.Int(32), [5])])


def test_a_name_that_nobody_has():
    with pytest.raises(AttributeError, match="no attribute 'tilt'"):
        _ = plus().tilt
    with pytest.raises(AttributeError, match="no attribute 'tilt'"):
        _ = hl.tilt


def test_undefined_values_are_written_over():
    f, r = hl.Func("f"), hl.RDom([(0, 4)])
    f[x] = hl.undef(hl.UInt(8))
    f[r] = hl.u8(r * 3)
    assert f.type().bits() == 8 and f.num_update_definitions() == 1
    np.testing.assert_array_equal(f.realize([4]), [0, 3, 6, 9])
    with pytest.raises(UnsupportedError, match="undef inside"):
        f[x] = hl.select(x > 2, f[x], hl.undef(hl.UInt(8)))


def test_a_clone_has_a_schedule_of_its_own():
    f, g, h = plus(), hl.Func("g"), hl.Func("h")
    g[x, y] = f[x, y] + f[x + 1, y]
    h[x, y] = g[x, y] - f[x, y]
    g.compute_root()
    f.compute_root()
    f.clone_in(g).compute_at(g, y)
    assert "f_clone_in_g" in repr(h.kernel([6, 4]))
    np.testing.assert_array_equal(
        h.realize([6, 4]), np.asarray(plus().realize([6, 4])) + 1
    )


def test_a_wrapper_is_made_once():
    f, g = plus(), hl.Func("g")
    g[x, y] = f[x, y] * 2
    assert f.in_(g) is f.in_(g) and f.in_() is f.in_()
    assert "f_in_g" in repr(g)


def test_loop_nests_of_estimates(capsys):
    f = plus()
    with pytest.raises(InputError, match="the extent of x is not known"):
        f.print_loop_nest()
    f.set_estimates([(0, 8), (0, 3)]).print_loop_nest()
    assert "for y in [0, 2]" in capsys.readouterr().out


def test_types_answer():
    assert (
        hl.UInt(8).max() == 255
        and hl.Int(16).min() == -32768
        and hl.Float(32).bytes() == 4
    )
    assert hl.Int(8).can_represent(-128) and not hl.UInt(8).can_represent(256)
    assert hl.Int(16).can_represent(hl.UInt(8)) and not hl.UInt(8).can_represent(
        hl.Int(8)
    )
    assert hl.UInt(8).with_bits(32) == hl.UInt(32) and str(hl.Bool()) == "bool"
    assert hl.Bool().is_uint() and hl.Bool().bits() == 1 and hl.Bool().max() == 1


def test_loop_nests_show_a_definition_once(capsys):
    """No line for the registers that values are computed in before one of them is stored."""
    f, r = hl.Func("f"), hl.RDom([(0, 4)], "r")
    f[()] = (0, 1)
    f[()] = (f[()][1] * 2, f[()][0])
    f[()] = (f[()][1] + r, f[()][0])
    f.print_loop_nest([])
    assert capsys.readouterr().out.splitlines() == [
        "produce f:",
        "  f(...) = ...",
        "  f(...) = ...",
        "  for r.x in [0, 3]:",
        "    f(...) = ...",
    ]


NUMBERS = (0, 1, -1, 0.1, 1.5, 255, 256, 2**24, 2**24 + 1, 2**53 + 1, 1e300, 10**400)


@pytest.mark.parametrize("number", [*NUMBERS, float("inf")], ids=lambda n: repr(n)[:12])
@pytest.mark.parametrize("bits", [16, 32, 64])
def test_floats_that_can_be_represented(bits, number):
    """Those that survive the way there and back."""
    kind = np.dtype(f"float{bits}").type
    try:
        with np.errstate(over="ignore"):
            expected = float(kind(number)) == number
    except OverflowError:
        expected = False
    assert hl.Float(bits).can_represent(number) is expected


SCALARS = [hl.UInt(1)]
SCALARS += [kind(bits) for kind in (hl.Int, hl.UInt) for bits in (8, 16, 32, 64)]


@pytest.mark.parametrize("other", SCALARS, ids=str)
@pytest.mark.parametrize("type", [*SCALARS, *map(hl.Float, (16, 32, 64))], ids=str)
def test_types_that_can_be_represented(type, other):
    """A type holds another if it holds its ends, and what is next to them."""
    ends = {other.min(), min(other.min() + 1, 1), other.max() - 1, other.max()}
    assert type.can_represent(other) == all(map(type.can_represent, ends))


def test_floats_as_types():
    assert hl.Float(64).can_represent(hl.Float(32)) and hl.Float(16).can_represent(
        hl.Float(16)
    )
    assert not hl.Float(32).can_represent(hl.Float(64))
    assert not hl.Int(64).can_represent(hl.Float(16))
    assert not hl.Int(32).can_represent(0.5) and hl.UInt(8).can_represent(255.0)
    assert not hl.Int(32).can_represent(float("nan")) and hl.Float(32).can_represent(
        float("nan")
    )
