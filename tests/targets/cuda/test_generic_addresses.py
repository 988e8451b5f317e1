"""Generic addresses in the interpreter of PTX: LLVM selects one of two and accesses that."""

import numpy as np

from tilewright.testing.ptx.machine import run
from tilewright.testing.ptx.memory import CallerMemory
from tilewright.testing.ptx.text import kernels

# Even threads add 100 to their number in the device's memory, odd ones in shared memory; then all
# add up both.
TEXT = """
.version 7.0
.target sm_80
.address_size 64

.visible .entry k(
	.param .u64 k_param_0
)
{
	.reg .pred 	%p<2>;
	.reg .b32 	%r<9>;
	.reg .b64 	%rd<9>;
	.shared .align 4 .b8 held[128];

	ld.param.u64 	%rd1, [k_param_0];
	mov.u32 	%r1, %tid.x;
	mul.wide.u32 	%rd2, %r1, 4;
	add.s64 	%rd3, %rd1, %rd2;
	mov.u64 	%rd4, held;
	add.s64 	%rd5, %rd4, %rd2;
	st.global.u32 	[%rd3], %r1;
	st.shared.u32 	[%rd5], %r1;
	cvta.global.u64 	%rd6, %rd3;
	cvta.shared.u64 	%rd7, %rd5;
	and.b32 	%r2, %r1, 1;
	setp.eq.s32 	%p1, %r2, 0;
	selp.b64 	%rd8, %rd6, %rd7, %p1;
	ld.u32 	%r3, [%rd8];
	add.s32 	%r4, %r3, 100;
	st.u32 	[%rd8], %r4;
	ld.global.u32 	%r5, [%rd3];
	ld.shared.u32 	%r6, [%rd5];
	add.s32 	%r7, %r5, %r6;
	st.global.u32 	[%rd3], %r7;
	ret;
}
"""


def test_threads_of_one_instruction_access_several_memories() -> None:
    found = np.zeros(32, np.uint32)
    memory = CallerMemory([found.view(np.uint8)])
    run(kernels(TEXT)["k"], (1, 1, 1), (32, 1, 1), memory, [memory.addresses[0]], 0)
    got = memory.array(0, found.view(np.uint8)).view(np.uint32)
    np.testing.assert_array_equal(got, 2 * np.arange(32) + 100)
