"""define_extern: Funcs that a C function computes, beside the `halide` package."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright import halide as hl
from tilewright.base.errors import ExecutionError, InputError, ScheduleError

theirs = pytest.importorskip("halide")

SOURCE = """
#include <stdint.h>
typedef struct { int32_t min, extent, stride; uint32_t flags; } dim_t;
typedef struct {
  uint64_t device; void *interface; uint8_t *host; uint64_t flags;
  uint8_t code, bits; uint16_t lanes; int32_t dimensions; dim_t *dim; void *padding;
} buf_t;
static int32_t *at(buf_t *b, int x, int y) {
  return (int32_t *)b->host + (x - b->dim[0].min) * b->dim[0].stride
                            + (y - b->dim[1].min) * b->dim[1].stride;
}
/* out(x, y) = scale * (in(x - 1, y) + in(x + 2, y)) + offset(image) */
int tw_spread(buf_t *in, int32_t scale, float offset, buf_t *image, buf_t *out) {
  if (!in->host || !out->host) {
    in->dim[0].min = out->dim[0].min - 1;
    in->dim[0].extent = out->dim[0].extent + 3;
    in->dim[1] = out->dim[1];
    return 0;
  }
  for (int y = out->dim[1].min; y < out->dim[1].min + out->dim[1].extent; y++)
    for (int x = out->dim[0].min; x < out->dim[0].min + out->dim[0].extent; x++)
      *at(out, x, y) = scale * (*at(in, x - 1, y) + *at(in, x + 2, y))
                       + (int32_t)offset + ((int32_t *)image->host)[0];
  return 0;
}
int tw_fails(buf_t *out) { return out->host ? 7 : 0; }
/* out(x, y) = in(x, y) + in(x + 1, y); log: how many calls, and the region of each */
int tw_logs(buf_t *in, buf_t *log, buf_t *out) {
  if (!in->host || !out->host) {
    in->dim[0] = out->dim[0];
    in->dim[0].extent++;
    in->dim[1] = out->dim[1];
    return 0;
  }
  int32_t *row = (int32_t *)log->host, *place = row + 1 + 4 * (*row)++;
  for (int d = 0; d < 2; d++) {
    *place++ = out->dim[d].min;
    *place++ = out->dim[d].extent;
  }
  for (int y = out->dim[1].min; y < out->dim[1].min + out->dim[1].extent; y++)
    for (int x = out->dim[0].min; x < out->dim[0].min + out->dim[0].extent; x++)
      *at(out, x, y) = *at(in, x, y) + *at(in, x + 1, y);
  return 0;
}
"""


@pytest.fixture(scope="module", autouse=True)
def _library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("there is no C compiler")
    folder: Path = tmp_path_factory.mktemp("extern")
    source, library = folder / "f.c", folder / "f.so"
    source.write_text(SOURCE)
    subprocess.run([gcc, "-shared", "-fPIC", "-o", library, source], check=True)
    return ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)


image = np.arange(12, dtype=np.int32).reshape(3, 4) + 40


def spread(m: Any) -> tuple[Any, Any]:
    x, y = m.Var("x"), m.Var("y")
    f, g, out = m.Func("f"), m.Func("g"), m.Func("out")
    f[x, y] = x * 10 + y
    given = [
        m.ExternFuncArgument(f),
        m.ExternFuncArgument(3),
        m.ExternFuncArgument(m.Param(m.Float(32), "offset", 2.0)),
        m.ExternFuncArgument(m.Buffer(image)),
    ]
    g.define_extern("tw_spread", given, m.Int(32), 2)
    out[x, y] = g[x + 1, y] - g[x, y + 1]
    f.compute_root()
    g.compute_root()
    return out, g


def test_results_are_those_of_halide() -> None:
    found = []
    for m in (hl, theirs):
        out, g = spread(m)
        found.append(np.asarray(out.realize([9, 5])))
        assert g.extern_function_name() == "tw_spread"
    np.testing.assert_array_equal(*found)


def test_it_is_read_over_any_region_and_by_default_at_root() -> None:
    out, g = spread(hl)
    g.compute_inline()
    out.vectorize(hl.Var("x"), 4)
    region = np.asarray(out.realize([(3, 6), (2, 4)]))
    np.testing.assert_array_equal(region, np.asarray(out.realize([9, 6]))[2:, 3:])


def test_a_function_of_ctypes_and_several_values() -> None:
    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    def both(first: int, second: int) -> int:
        for n, address in enumerate((first, second)):
            memory = ctypes.c_void_p.from_address(address + 16).value
            if memory:
                ctypes.c_int32.from_address(memory).value = 5 + n
        return 0

    f, g, x = hl.Func("f"), hl.Func("g"), hl.Var("x")
    f.define_extern(both, [], [hl.Int(32), hl.Int(32)], [x])
    g[x] = f[x][0] * 10 + f[x][1]
    assert np.asarray(g.realize([1])).tolist() == [56]


def test_a_function_is_told_the_type_of_its_values() -> None:
    """`halide_type_t`: a byte each of code and bits."""
    told = []

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
    def tell(address: int) -> int:
        told[:] = [ctypes.c_uint8.from_address(address + n).value for n in (32, 33)]
        return 0

    x = hl.Var("x")
    for made, want in (
        (hl.Bool(), [1, 1]),
        (hl.Int(16), [0, 16]),
        (hl.BFloat(16), [4, 16]),
    ):
        plain, out = hl.Func("plain"), hl.Func("out")
        plain.define_extern(tell, [], made, 1)
        out[x] = plain[x]
        out.realize([3])
        assert told == want, made


def test_what_is_wrong_is_said() -> None:
    f, g, x = hl.Func("f"), hl.Func("g"), hl.Var("x")
    with pytest.raises(InputError, match="no function 'tw_none'"):
        f.define_extern("tw_none", [], hl.Int(32), 1)
    with pytest.raises(InputError, match="is not a C function"):
        f.define_extern(len, [], hl.Int(32), 1)
    f.define_extern("tw_fails", [], hl.Int(32), 1)
    with pytest.raises(InputError, match="has no updates"):
        f[x] = 3
    with pytest.raises(InputError, match="it has a definition"):
        f.define_extern("tw_fails", [], hl.Int(32), 1)
    with pytest.raises(InputError, match="an output is computed by a C function"):
        f.realize([3])
    g[x] = f[x] + 1
    with pytest.raises(ExecutionError, match="the function returned 7"):
        g.realize([3])
    f.memoize()
    with pytest.raises(ScheduleError, match="memoize: a C function computes it"):
        g.realize([3])


# -- at a loop


def logged(m: Any, schedule: Any) -> tuple[Any, Any, Any]:
    """A Func of an extern one of a Func, and the calls."""
    x, y = m.Var("x"), m.Var("y")
    f, g, out = m.Func("f"), m.Func("g"), m.Func("out")
    calls = np.zeros(1000, np.int32)
    f[x, y] = x * x + 3 * y
    given = [m.ExternFuncArgument(f), m.ExternFuncArgument(m.Buffer(calls))]
    g.define_extern("tw_logs", given, m.Int(32), 2)
    out[x, y] = g[x + 1, y] - g[x, y + 1]
    f.compute_root()
    schedule(m, g, out, x, y)
    return out, g, calls


SCHEDULES = {
    "root": lambda m, g, out, x, y: g.compute_root(),
    "row": lambda m, g, out, x, y: g.compute_at(out, y),
    "point": lambda m, g, out, x, y: g.compute_at(out, x),
    "tiles": lambda m, g, out, x, y: (
        out.tile(x, y, m.Var("xo"), m.Var("yo"), m.Var("xi"), m.Var("yi"), 4, 2),
        g.compute_at(out, m.Var("xo")),
    ),
    "columns": lambda m, g, out, x, y: (
        out.reorder(y, x).split(x, x, m.Var("xi"), 3, m.TailStrategy.GuardWithIf),
        g.compute_at(out, x),
    ),
    "fused": lambda m, g, out, x, y: (
        out.tile(x, y, m.Var("xo"), m.Var("yo"), m.Var("xi"), m.Var("yi"), 4, 2),
        out.fuse(m.Var("xo"), m.Var("yo"), m.Var("t")).vectorize(m.Var("xi"), 2),
        g.compute_at(out, m.Var("t")),
    ),
}


@pytest.mark.covering(1)  # each schedule, both sizes
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("size", [(8, 4), (10, 5)])
def test_at_a_loop_it_is_called_for_the_regions_of_halide(name: str, size: Any) -> None:
    found, regions = [], []
    for m in (hl, theirs):
        out, _, calls = logged(m, SCHEDULES[name])
        found.append(np.asarray(out.realize(list(size))))
        several = calls[1 : 1 + 4 * calls[0]].reshape(-1, 4).tolist()
        regions.append([*dict.fromkeys(map(tuple, several))])
    np.testing.assert_array_equal(*found)
    assert regions[0] == regions[1] and len(regions[0]) == len({*regions[0]})


def test_at_a_loop_of_a_reader_that_is_at_a_loop() -> None:
    out, g, calls = logged(hl, lambda m, g, out, x, y: g.compute_root())
    yo, yi, x, y, h = *hl.vars("yo yi x y"), hl.Func("h")
    h[x, y] = out[x, y] + out[x, y + 1]
    want = np.asarray(h.realize([6, 5]))
    h.split(y, yo, yi, 2, hl.TailStrategy.GuardWithIf)
    out.compute_at(h, yo)
    g.compute_at(out, y)
    calls[:] = 0
    np.testing.assert_array_equal(h.realize([6, 5]), want)
    rows = calls[1 : 1 + 4 * calls[0]].reshape(-1, 4)[:, 2:].tolist()
    assert rows == [[n, 2] for n in range(6)]


def test_a_loop_that_does_not_hold_its_readers_is_refused() -> None:
    x, y, z, h = *hl.vars("x y z"), hl.Func("h")
    out, g, _ = logged(hl, lambda m, g, out, x, y: g.compute_at(out, z))
    with pytest.raises(ScheduleError, match=r"no such loop.*compute_at\(out, x\)"):
        out.realize([4, 4])
    g.compute_at(out, x)
    h[x, y] = out[x, y] + g[x, y]
    out.compute_root()
    with pytest.raises(ScheduleError, match="read outside of out too"):
        h.realize([4, 4])
    g.compute_at(h, y)
    with pytest.raises(ScheduleError, match="read outside of h too"):
        h.realize([4, 4])
    out.compute_at(h, y)
    assert h.realize([4, 4]) is not None
