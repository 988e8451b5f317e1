"""Clusters of blocks that copy for one another (`multicast::cluster`), as PTX."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.loops import test_clusters as in_launches
from tests.loops.gpu_kernels import judged
from tests.targets.cuda.group_products import tensorized
from tests.targets.cuda.running import load_counted
from tests.targets.cuda.test_wgmma import run, waits
from tilewright.base.dtypes import float32
from tilewright.base.errors import CompileError
from tilewright.expr.nodes import INDEX, Buffer, Expr, Var, const
from tilewright.loops.launch import Barrier, LaunchProgram, Wait
from tilewright.loops.nodes import (
    BULK,
    CLUSTER,
    Alloc,
    Kernel,
    Stmt,
    Store,
    block,
    loop,
)
from tilewright.loops.parser import parse_program
from tilewright.loops.passes.in_flight import PRODUCTS
from tilewright.loops.passes.to_launches import to_launches
from tilewright.targets.cuda import report
from tilewright.targets.cuda.emit import ptx
from tilewright.targets.cuda.machine import machine
from tilewright.targets.cuda.target import Cuda, code_of
from tilewright.testing.ptx.clusters import clusters_of
from tilewright.testing.ptx.device import load

SM90A = machine("sm_90a")
DOWN = {"stages": 3, "extents": (128, 64, 256), "cluster": (2, 1)}
ACROSS = {"stages": 2, "extents": (64, 128, 256), "cluster": (1, 2)}


def program(**how: object) -> LaunchProgram:
    how = {"of": "bfloat16", **DOWN, **how}
    kernel = tensorized(in_boxes=True, **how).kernel  # type: ignore[arg-type]
    return to_launches(kernel, 32, async_copies=True, bulk_copies=True)


@pytest.mark.sampled(2)  # either factor; one step at a time and several; b as it is
@pytest.mark.parametrize(
    "how",
    [
        DOWN,
        ACROSS,
        {"stages": 1, "extents": (128, 64, 128)},
        {"stages": 4, "extents": (128, 64, 512), "of": "float16"},
        {"transposed": False},
        {"cluster": (4, 1), "extents": (256, 128, 256), "columns": 128},
    ],
)
def test_a_product_is_right(how):
    p = program(**how)
    text = ptx(p, SM90A)
    blocks = re.search(r"\.explicitcluster\n\.reqnctapercluster (.*)\n", text)
    assert blocks is not None
    assert blocks[1] == ", ".join(map(str, p.launches[0].cluster))
    assert "multicast::cluster" in text
    found, wanted = run(p, text)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-4)


def test_steps_overlap_as_without_clusters():
    p = program()
    assert waits(p) == [1, 0] and "barrier cluster" in str(p)


def test_half_of_the_shared_factor_is_read():
    alone, together = (
        load_counted(program(cluster=cluster), SM90A)[0] for cluster in ((1, 1), (2, 1))
    )
    whole = 2 * 4 * 64 * 64 * 2  # of a factor: blocks, steps, elements of a tile, bytes
    assert (alone.boxes, together.boxes) == (2 * whole, whole + whole // 2)


@pytest.mark.skipif(report.ptxas() is None, reason="there is no ptxas")
def test_ptxas_takes_it_with_no_more_registers():
    used = []
    for cluster in ((1, 1), (2, 1)):
        text = ptx(program(cluster=cluster), SM90A)
        used += report.assemble(text, SM90A)[1].values()
    alone, together = used
    assert abs(together.registers - alone.registers) <= 8
    assert together.stack == together.spill_stores == 0 and not together.is_serialized


# -- planted faults

PAIR = r"barrier\.cluster\.arrive\.aligned;\n\tbarrier\.cluster\.wait\.aligned;"
MEET = "bar.sync \t0;"
EXPECT = r"(mbarrier\.expect_tx\S* \t\S+), %r\d+;"
# what is replaced in the text, by what, which ones of these, and what is found
FAULTS = {
    "no barrier of the cluster before the first copy": (
        PAIR,
        MEET,
        slice(1),
        "used with no barrier of the cluster since it was made",
    ),
    "a slot is released after its own use only": (
        PAIR,
        MEET,
        slice(1, None),
        "with no barrier of the cluster since that used it",
    ),
    "a slot is never released": (PAIR, "", slice(1, None), "barrier of the cluster"),
    "nobody waits for the cluster": (
        r"barrier\.cluster\.wait\.aligned;",
        MEET,
        slice(None),
        "used with no barrier of the cluster since it was made|arrives twice",
    ),
    "nobody arrives": (
        r"barrier\.cluster\.arrive\.aligned;",
        "",
        slice(1),
        "waits that has not arrived",
    ),
    "a mask of itself": (
        r"mov\.b16 (\t%rs\d+), 3;",
        r"mov.b16 \1, 1;",
        slice(None),
        "do not come",
    ),
    "a mask of the other": (
        r"mov\.b16 (\t%rs\d+), 3;",
        r"mov.b16 \1, 2;",
        slice(None),
        "do not come",
    ),
    "a mask of too many": (
        r"mov\.b16 (\t%rs\d+), 3;",
        r"mov.b16 \1, 7;",
        slice(None),
        "is not a mask of 2",
    ),
    "bytes of its own part": (
        EXPECT,
        r"\1, 4096;",
        slice(1),
        "do not come|with no wait",
    ),
    "bytes of more parts": (
        EXPECT,
        r"\1, 16384;",
        slice(1),
        "8192 bytes that do not come",
    ),
    "a block ends before others copy into its memory": (
        PAIR,
        "\\g<0>\n\tsetp.eq.u32 \t%p99, %ctaid.y, 1;\n\t@%p99 ret;\n",
        slice(1),
        "of a block that ended",
    ),
    "no cluster": (
        r"\.reqnctapercluster.*\n",
        "",
        slice(None),
        "is not a mask of 1 blocks",
    ),
}


def replaced(text: str, pattern: str, instead: str, which: slice) -> str:
    """The text with some of the matches replaced."""
    chosen = list(re.finditer(pattern, text))[which]
    for match in reversed(chosen):
        text = text[: match.start()] + match.expand(instead) + text[match.end() :]
    return text


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name):
    pattern, instead, which, why = FAULTS[name]
    p = program()
    text = ptx(p, SM90A)
    wrong = replaced(text, pattern, instead, which)
    assert wrong != text
    with pytest.raises(RuntimeError, match=why):
        run(p, wrong)


def test_a_block_that_ends_while_others_write_to_it_is_found():
    lines = in_launches.ENDS.split("\n")
    load_counted(parse_program(lines), SM90A)
    with pytest.raises(RuntimeError, match="ends with no wait for a box in its memory"):
        load_counted(parse_program(lines[:-1]), SM90A)


AGAIN = """\
program f(x: float32[16, 32]) -> y: float32[2, 32]:
  launch f_0(x, y) grid [2, 1, 1] threads [32, 1, 1] cluster [2, 1, 1]:
    shared t: float32[16, 32] in shared swizzled 128
    if threadIdx.x < 1:
      for r in 8 multicast:
        for c in 32:
          t[blockIdx.x % 2 * 8 + r, c] = x[blockIdx.x % 2 * 8 + r, c]
    commit bulk
    wait bulk
    {used}
    barrier {scope}
    if threadIdx.x < 1:
      for r2 in 8 multicast:
        for c2 in 32:
          t[blockIdx.x % 2 * 8 + r2, c2] = x[blockIdx.x % 2 * 8 + r2, c2]
    commit bulk
    wait bulk
    y[blockIdx.x, threadIdx.x] = t[0, threadIdx.x]"""
READ = "y[blockIdx.x, threadIdx.x] = t[1, threadIdx.x]"


@pytest.mark.parametrize("used", [READ, f"barrier cluster\n    {READ}", "pass"])
def test_what_uses_a_box_last_is_in_front_of_the_barrier(used):
    """A thread that reads it, or the wait for it alone."""
    for scope in ("cluster", "shared"):
        p = parse_program(AGAIN.format(used=used, scope=scope).split("\n"))
        if scope == "cluster":
            load_counted(p, SM90A)
            continue
        with pytest.raises(RuntimeError, match="of the cluster since that used it"):
            load_counted(p, SM90A)


def test_a_product_uses_its_factors_until_the_wait_for_it():
    """A barrier of the cluster in front of that wait is too early."""
    p = program()
    early = "        barrier cluster\n        wait products 1\n        barrier shared"
    (meeting,) = in_launches.found(p, Barrier)
    first = next(s for s in in_launches.found(p, Wait) if s.of == PRODUCTS)
    wrong = in_launches.edited(
        p,
        {
            meeting: Barrier("shared"),
            first: block(Barrier("cluster"), first),
        },
    )
    assert early in str(wrong)
    with pytest.raises(RuntimeError, match="of the cluster since that used it"):
        run(wrong, ptx(wrong, SM90A))


def written_by_threads() -> Kernel:
    """Threads write a tile and read it, and a box that all blocks copy overwrites it."""
    x, y, z = (
        Buffer("x", (16, 32), float32),
        *(Buffer(n, (2, 16, 32), float32) for n in "yz"),
    )
    t = Buffer("t", (16, 32), float32, "shared", 128)
    b, r, c = (Var(n, INDEX) for n in "brc")

    def rows(name: str, body: Callable[[Expr, Expr], Stmt]) -> Stmt:
        i, row = Var(name, INDEX), Var(f"{name}r", INDEX)
        return loop(i, 32, loop(row, 16, body(row, i)), "threadIdx.x")

    body = block(
        rows("i", lambda r, i: Store(t, (r, i), x[r, i] + x[r, i])),
        rows("j", lambda r, i: Store(y, (b, r, i), t[r, const(31) - i])),
        loop(r, 16, loop(c, 32, Store(t, (r, c), x[r, c]))),
        rows("k", lambda r, i: Store(z, (b, r, i), t[r, const(31) - i])),
    )
    whole = loop(b, 2, Alloc(t, body), "blockIdx.x")
    notes = {"r": {BULK: 1}, "b": {CLUSTER: 2}}
    return Kernel("f", (x, y, z), (y, z), whole, notes)


def test_a_box_for_all_may_overwrite_what_threads_wrote():
    kernel = written_by_threads()
    p = to_launches(kernel, 32, bulk_copies=True)
    judged(kernel, p)
    given = np.arange(512, dtype=np.float32).reshape(16, 32)
    _, (y, z) = load_counted(p, SM90A, {p.params[0]: given})
    turned = given[:, ::-1]
    assert np.array_equal(y, [2 * turned] * 2) and np.array_equal(z, [turned] * 2)
    code = code_of(p, ptx(p, SM90A), SM90A)
    wrong = re.sub(r"fence\.proxy\.async\S*;", "", code.text)
    flat = [np.zeros(b.size * 4, np.uint8) for b in p.params]
    with pytest.raises(RuntimeError, match=r"no fence\.proxy\.async since"):
        load(replace(code, text=wrong).to_bytes())(flat, False)


def test_the_blocks_of_a_cluster_are_neighbors_on_its_axis():
    made = clusters_of((4, 2, 1), (2, 1, 1), 1, 0)
    assert made.peers.tolist() == [
        [0, 1],
        [0, 1],
        [2, 3],
        [2, 3],
        [4, 5],
        [4, 5],
        [6, 7],
        [6, 7],
    ]
    made = clusters_of((2, 4, 1), (1, 2, 1), 1, 0)
    assert made.peers.tolist() == [
        [0, 2],
        [1, 3],
        [0, 2],
        [1, 3],
        [4, 6],
        [5, 7],
        [4, 6],
        [5, 7],
    ]
    with pytest.raises(ValueError, match="has no clusters of"):
        clusters_of((3, 1, 1), (2, 1, 1), 1, 0)


def test_an_older_gpu_has_no_clusters():
    kernel = in_launches.schedule().kernel
    p = to_launches(kernel, 32, bulk_copies=True)
    assert "multicast::cluster" in ptx(p, machine("sm_90"))
    with pytest.raises(CompileError, match="which this GPU lacks"):
        ptx(p, machine("sm_80"))
    assert "cluster" not in str(Cuda(machine("sm_80"), False).launches(kernel))
