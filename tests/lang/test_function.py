"""A built kernel as a function: calling, refusing, showing."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from tilewright.base.dtypes import float32
from tilewright.base.errors import InputError, UnsupportedError
from tilewright.base.events import record
from tilewright.driver.compile import compile
from tilewright.lang.function import Function
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Kernel
from tilewright.operators import Buffer, map_


def _kernel() -> Kernel:
    x, y, z = (Buffer(name, (4, 6), float32) for name in "xyz")
    double = map_("double", y, lambda i, j: x[i, j] + x[i, j])
    square = map_("square", z, lambda i, j: x[i, j] * x[i, j])
    return lower("both", [double, square], [x, y, z], [y, z])


@pytest.mark.parametrize("target", ["cpu", "interp"])
def test_writes_into_the_callers_arrays(target: str) -> None:
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    y, z = np.zeros_like(x), np.zeros_like(x)
    assert Function(_kernel(), target)(x, y, z) is None
    np.testing.assert_array_equal(y, x + x)
    np.testing.assert_array_equal(z, x * x)


def test_overlapping_and_strided_arrays() -> None:
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    wanted, wide = x * x, np.zeros((4, 12), np.float32)
    Function(_kernel())(x, wide[:, ::2], x)
    np.testing.assert_array_equal(x, wanted)
    np.testing.assert_array_equal(wide[:, ::2] ** 2, 4 * wanted)


def test_copies_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    f = Function(_kernel())
    x, y, z = (
        np.ones((6, 4), np.float32).T,
        np.zeros((4, 6), np.float32),
        np.zeros((4, 12)),
    )
    wide = z.astype(np.float32)[:, ::2]
    with record() as events:
        f(np.ascontiguousarray(x), y, y.copy())
        assert not [e for e in events if e.kind == "copy"]
        f(x, y, wide)
    copies = [e.fields for e in events if e.kind == "copy"]
    assert copies == [{"kernel": "both", "array": n, "bytes": 96} for n in "xz"]
    assert (wide == 1).all() and (y == 2).all()
    monkeypatch.setenv("TILEWRIGHT_FALLBACK", "error")
    with pytest.raises(
        InputError, match=r"both: x: float32\[4, 6\].*ascontiguousarray"
    ) as raised:
        f(x, y, wide)
    assert raised.value.code == "TW-FALLBACK"
    f(np.ascontiguousarray(x), y, y.copy())


def test_outputs_that_share_memory_are_refused() -> None:
    x, rows = np.ones((4, 6), np.float32), np.zeros((5, 6), np.float32)
    function = Function(_kernel())
    for y, z in ((rows[:4], rows[:4]), (rows[:4], rows[1:])):
        with pytest.raises(
            InputError, match="out= for 'y' and 'z': the arrays share memory"
        ):
            function(x, y, z)
    assert not rows.any()
    wide = np.zeros((4, 12), np.float32)
    function(x, wide[:, ::2], wide[:, 1::2])  # side by side: each is its own
    np.testing.assert_array_equal(wide, np.tile([2, 1], (4, 6)))


def test_a_missing_output_is_refused() -> None:
    x = np.ones((4, 6), np.float32)
    with pytest.raises(InputError, match=r"both: z.* was given no array"):
        Function(_kernel())(x, np.zeros_like(x), None)


_GOOD = np.zeros((4, 6), np.float32)


@pytest.mark.parametrize("target", ["cpu", "interp"])
@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ((_GOOD, _GOOD), "2 arrays given, 3 expected: x: float32"),
        (
            (_GOOD, _GOOD, np.zeros((4, 5), np.float32)),
            r"z.*float32\[4, 6\].*float32\[4, 5\]",
        ),
        ((_GOOD, _GOOD, np.zeros((4, 6))), r"z.*float32\[4, 6\].*float64\[4, 6\]"),
        ((_GOOD.astype(np.int32), _GOOD, _GOOD), "x.*int32"),
        ((_GOOD, _GOOD, [0.0]), "z.*(list|NumPy)"),
    ],
    ids=["count", "shape", "dtype", "input", "list"],
)
def test_refuses(target: str, arrays: tuple[object, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Function(_kernel(), target)(*arrays)


def test_source() -> None:
    f = Function(_kernel())
    assert f.source().startswith("kernel both(x: float32[4, 6])")
    assert "define void @both" in f.source("llvm")
    assert "vaddps" in f.source("asm") or "addss" in f.source("asm")
    with pytest.raises(InputError, match="no 'ptx' text"):
        f.source("ptx")


def test_unknown_target() -> None:
    with pytest.raises(UnsupportedError, match="unknown target 'abacus'"):
        Function(_kernel(), "abacus")


class _Labeled(np.ndarray):
    """A subclass, which is not a plain array."""


def _locked() -> np.ndarray:
    a = np.zeros((4, 6), np.float32)
    a.flags.writeable = False
    return a


_ODD = {
    "strided": lambda: np.zeros((4, 12), np.float32)[:, ::2],
    "transposed": lambda: np.zeros((6, 4), np.float32).T,
    "locked": _locked,
    "unaligned": lambda: np.zeros(97, np.uint8)[1:].view(np.float32).reshape(4, 6),
    "subclass": lambda: np.zeros((4, 6), np.float32).view(_Labeled),
    "list": lambda: [[0.0] * 6] * 4,
}


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("name", _ODD)
def test_the_quick_way_leaves_odd_arrays_alone(name: str, place: int) -> None:
    quick = compile(_kernel()).in_place
    assert quick is not None
    arrays = [
        np.ones((4, 6), np.float32),
        *(np.zeros((4, 6), np.float32) for _ in range(2)),
    ]
    assert quick(tuple(arrays))
    arrays = [
        np.ones((4, 6), np.float32),
        *(np.zeros((4, 6), np.float32) for _ in range(2)),
    ]
    arrays[place] = _ODD[name]()
    assert not quick(tuple(arrays))
    assert not any(
        np.asarray(a).any() for n, a in enumerate(arrays) if n not in (0, place)
    )
    assert not quick((*arrays, arrays[0])) and not quick(tuple(arrays[:2]))


def test_the_quick_way_takes_arrays_that_moved() -> None:
    """An array may be given other memory between calls, and another one its place."""
    function = Function(_kernel())
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    y, z = np.zeros_like(x), np.zeros_like(x)
    for n in range(600):
        function(x, y, z)
        assert (y == x + x).all() and (z == x * x).all()
        if n % 3:
            y = np.full((4, 6), np.float32(n))
        else:
            y.resize((400, 600), refcheck=False)
            y.resize((4, 6), refcheck=False)


def test_the_quick_way_sees_shared_memory() -> None:
    x = np.arange(48, dtype=np.float32)
    quick = compile(_kernel()).in_place
    assert quick is not None
    whole = x[:24].reshape(4, 6)
    assert not quick((whole, x[12:36].reshape(4, 6), np.zeros((4, 6), np.float32)))
    assert quick((whole, x[24:].reshape(4, 6), np.zeros((4, 6), np.float32)))


@pytest.mark.usefixtures("own_garbage")
def test_the_quick_way_sees_shared_memory_among_many_arrays() -> None:
    a, b, *outs = (Buffer(f"b{n}", (4,), float32) for n in range(22))
    sums = [
        map_(f"sum{n}", out, lambda i, n=n: a[i] + b[i] * n)
        for n, out in enumerate(outs)
    ]
    quick = compile(lower("many", sums, [a, b, *outs], outs)).in_place
    gc.collect()  # the function keeps its native code
    assert quick is not None
    memory = np.arange(22 * 4, dtype=np.float32).reshape(22, 4)
    first, second = memory[:2].copy()
    rng = np.random.default_rng(0)
    for _ in range(20):
        rows = [memory[n] for n in rng.permutation(22)]
        rows[0][:], rows[1][:] = first, second
        assert quick(tuple(rows))
        for n, row in enumerate(rows[2:]):
            np.testing.assert_array_equal(row, first + second * np.float32(n))
        assert quick((rows[0], *rows[:1], *rows[2:]))  # one array for both inputs
        one, other = rng.choice(20, 2, replace=False) + 2
        flat, kept = memory.reshape(-1), list(rows)
        kept[one] = rows[other]
        assert not quick(tuple(kept))
        kept[one] = flat[
            6:10
        ]  # it shares memory with two rows, of which one may be its own
        assert not quick(tuple(kept))
        kept[one], kept[0] = rows[one], rows[one]
        assert not quick(tuple(kept))
