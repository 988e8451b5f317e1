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


def test_what_is_wrong_is_said() -> None:
    f, g, x = hl.Func("f"), hl.Func("g"), hl.Var("x")
    with pytest.raises(InputError, match="no function 'tw_none'"):
        f.define_extern("tw_none", [], hl.Int(32), 1)
    with pytest.raises(InputError, match="is no C function"):
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
    f.compute_at(g, x)
    with pytest.raises(ScheduleError, match="at root, once in each run"):
        g.realize([3])
