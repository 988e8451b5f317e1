"""Shuffles in the interpreter of PTX: threads wait for all that the mask names, as on a GPU."""

import numpy as np
import pytest

from tilewright.testing.ptx.machine import run
from tilewright.testing.ptx.memory import CallerMemory
from tilewright.testing.ptx.text import kernels

# Thread 0 takes a way that is behind the shuffle in the text; LATE says how it goes on.
TEXT = """
.version 7.0
.target sm_80
.address_size 64

.visible .entry k(
	.param .u64 k_param_0
)
{
	.reg .pred 	%p<2>;
	.reg .b32 	%r<4>;
	.reg .b64 	%rd<4>;

	ld.param.u64 	%rd1, [k_param_0];
	mov.u32 	%r1, %tid.x;
	setp.eq.s32 	%p1, %r1, 0;
	@%p1 bra 	$L__BB0_2;
$L__BB0_1:
	shfl.sync.bfly.b32 	%r2, %r1, 1, 31, -1;
	mul.wide.u32 	%rd2, %r1, 4;
	add.s64 	%rd3, %rd1, %rd2;
	st.global.u32 	[%rd3], %r2;
	ret;
$L__BB0_2:
	LATE;
}
"""


def exchanged(late: str) -> list[int]:
    found = np.zeros(64, np.uint32)
    memory = CallerMemory([found.view(np.uint8)])
    kernel = kernels(TEXT.replace("LATE", late))["k"]
    run(kernel, (2, 1, 1), (32, 1, 1), memory, [memory.addresses[0]], 0)
    return [int(n) for n in memory.array(0, found.view(np.uint8)).view(np.uint32)]


def test_a_thread_that_comes_later_is_waited_for() -> None:
    wanted = [n ^ 1 for n in range(32)] + [0] * 32
    assert exchanged("bra.uni 	$L__BB0_1") == wanted


def test_a_thread_that_never_comes_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="a neighbor is not at the shuffle"):
        exchanged("ret")
