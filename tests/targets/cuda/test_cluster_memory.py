"""Shared memory that blocks of a cluster read of one another (`mapa`), as PTX."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.loops.gpu_kernels import kernel
from tests.loops.test_cluster_memory import TWICE, launched, rows
from tests.targets.cuda.running import load_counted
from tilewright.base.errors import CompileError
from tilewright.loops import interp
from tilewright.loops.launch import LaunchProgram
from tilewright.loops.parser import parse_program
from tilewright.targets.cuda import report
from tilewright.targets.cuda.emit import ptx
from tilewright.targets.cuda.machine import machine
from tilewright.targets.cuda.target import Cuda, code_of
from tilewright.targets.opencl.target import OpenCL
from tilewright.targets.simt.machine import described
from tilewright.testing.ptx.device import load
from tilewright.testing.ptx.traffic import AccessKind

SM90A = machine("sm_90a")
Array = np.ndarray


def arrays(p: LaunchProgram) -> list[Array]:
    rng = np.random.default_rng(1)
    made = [rng.integers(-9, 9, b.shape) for b in p.params]
    return [np.ascontiguousarray(a, b.dtype.numpy) for a, b in zip(made, p.params)]


def ran(p: LaunchProgram, text: str, given: list[Array]) -> Array:
    """The last parameter of a program after its PTX has run."""
    flat = [a.reshape(-1).view(np.uint8).copy() for a in given]
    load(code_of(p, text, SM90A).to_bytes())(flat, False)
    return flat[-1].view(given[-1].dtype).reshape(given[-1].shape)


def right(text: str, p: LaunchProgram, code: str) -> bool:
    """Whether PTX computes what a kernel does."""
    given = arrays(p)
    k = kernel(text)
    wanted = {b: a.copy() for b, a in zip(k.params, given, strict=True)}
    interp.run(k, wanted)
    return np.array_equal(ran(p, code, given), wanted[k.params[-1]])


TEXTS = {
    "a row": rows(128),
    "a partial row": rows(101),
    "a row shorter than the cluster": rows(3, 8, 2),
    "one element": rows(1, 2, 5),
    "several steps": TWICE,
}


@pytest.mark.parametrize("warp", [1, 32])
@pytest.mark.parametrize("name", TEXTS)
def test_a_cluster_is_right(name, warp):
    p = launched(TEXTS[name], warp)
    code = ptx(p, SM90A)
    assert "mapa.shared::cluster" in code and "ld.shared::cluster" in code
    assert ".reqnctapercluster" in code and "st.shared::cluster" not in code
    assert "fence.proxy" not in code  # no unit beside the threads uses its memory
    assert right(TEXTS[name], p, code)


def test_each_peer_is_read_once():
    p = launched(rows(128))
    assert ptx(p, SM90A).count("ld.shared::cluster") == 4
    traffic, _ = load_counted(p, SM90A)
    assert traffic.requests[AccessKind("cluster", False)] == 3 * 4 * 4


@pytest.mark.skipif(report.ptxas() is None, reason="there is no ptxas")
@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("arch", ["sm_90", "sm_90a"])
def test_ptxas_takes_it_without_spills(name, arch):
    of = machine(arch)
    found = report.assemble(ptx(launched(TEXTS[name]), of), of)[1]
    assert found
    for used in found.values():
        assert used.stack == used.spill_stores == 0 and not used.is_serialized


# -- planted faults

PAIR = re.compile(
    r"\tbarrier\.cluster\.arrive\.aligned;\n\tbarrier\.cluster\.wait\.aligned;\n"
)


@pytest.mark.parametrize("name", ["a partial row", "several steps"])
@pytest.mark.parametrize("instead", ["", "\tbar.sync \t0;\n"])
def test_each_barrier_of_the_cluster_is_needed(name, instead):
    """The last one included; one of the block is not enough."""
    p = launched(TEXTS[name])
    code = ptx(p, SM90A)
    found = list(PAIR.finditer(code))
    assert len(found) >= 2
    for at in found:
        wrong = code[: at.start()] + instead + code[at.end() :]
        with pytest.raises(RuntimeError, match=r"cluster|may not have begun|has ended"):
            ran(p, wrong, arrays(p))


def test_a_block_that_reads_its_own_slice_only_is_found():
    p = launched(rows(101))
    code = ptx(p, SM90A)
    wrong = re.sub(r"mapa\S+ \t(%rd\d+), (%rd\d+), \d;", r"mov.u64 \t\1, \2;", code)
    wrong = wrong.replace("ld.shared::cluster", "ld.shared")
    assert "mapa" not in wrong
    assert not right(rows(101), p, wrong)


@pytest.mark.parametrize(
    ("old", "new", "error", "why"),
    [
        (r"(mapa\S+ \t%rd\d+, %rd\d+), 3;", r"\1, 4;", IndexError, "has 4 blocks"),
        (r"ld\.shared::cluster", "ld.shared", IndexError, "of a cluster in a block"),
    ],
)
def test_a_wrong_address_is_found(old, new, error, why):
    p = launched(rows(101))
    wrong, count = re.subn(old, new, ptx(p, SM90A))
    assert count
    with pytest.raises(error, match=why):
        ran(p, wrong, arrays(p))


def test_a_write_to_another_slice_is_found():
    text = str(launched(rows(101)))
    wrong = text.replace("s[] add= p[c]", "p[c] = s[]")
    p = parse_program(wrong.split("\n"))
    code = ptx(p, SM90A)
    assert "st.shared::cluster" in code
    with pytest.raises(RuntimeError, match="writes to the memory of another block"):
        ran(p, code, arrays(p))


# -- other machines


@pytest.mark.parametrize("arch", ["sm_80", "sm_89"])
def test_gpus_without_clusters_refuse_it_by_name(arch):
    target = Cuda(machine(arch), exact=False)
    with pytest.raises(CompileError, match=f"p is in the memory .* which {arch} lacks"):
        target.emit(kernel(rows(128)), "f")


def test_opencl_refuses_it_by_name():
    target = OpenCL(described({"like": "generic"}), exact=False)
    with pytest.raises(CompileError, match=r"p is in the memory .* OpenCL .* lacks"):
        target.emit(kernel(rows(128)), "f")


def test_a_gpu_with_clusters_takes_it():
    assert Cuda(SM90A, exact=False).emit(kernel(rows(128)), "f")
