"""Small hand-written native models for the tests, assembled with llvmlite."""

import numpy as np

from tilewright.runtime.model import (
    CompiledModel,
    KernelRecord,
    NativeStep,
    Tensor,
    ValueSlot,
)
from tilewright.targets.cpu.pool import pool_object

TRIPLE = "x86_64-unknown-linux-gnu"


def assemble(text, reloc="pic", triple=TRIPLE):
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = llvm.parse_assembly(f'target triple = "{triple}"\n{text}')
    module.verify()
    cpu = "x86-64" if triple.startswith("x86") else "generic"
    target = llvm.Target.from_triple(triple)
    machine = target.create_target_machine(
        cpu=cpu, opt=2, reloc=reloc, codemodel="small"
    )
    return machine.emit_object(module)


# out[i] = 2 * in[i] + bias[i] through the arena, in parallel, in two kernels of its own object;
# kernel 1 refuses a first element of 13. Stamps and status as the code generator makes them.
_KERNELS = """
declare void @stamp(ptr, i64)

define void @double_region(ptr %closure, i64 %thread, i64 %begin, i64 %end) {{
entry:
  %in.p = getelementptr ptr, ptr %closure, i64 0
  %in = load ptr, ptr %in.p
  %out.p = getelementptr ptr, ptr %closure, i64 1
  %out = load ptr, ptr %out.p
  br label %loop
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %body ]
  %more = icmp slt i64 %i, %end
  br i1 %more, label %body, label %done
body:
  %a.p = getelementptr float, ptr %in, i64 %i
  %a = load float, ptr %a.p
  %b = fadd float %a, %a
  %b.p = getelementptr float, ptr %out, i64 %i
  store float %b, ptr %b.p
  %next = add i64 %i, 1
  br label %loop
done:
  ret void
}}

define void @double(ptr %ctx, ptr %in, ptr %out, ptr %workspace) {{
  %closure = alloca [2 x ptr]
  store ptr %in, ptr %closure
  %second = getelementptr ptr, ptr %closure, i64 1
  store ptr %out, ptr %second
  %threads.p = getelementptr i64, ptr %ctx, i64 1
  %threads = load i64, ptr %threads.p
  %many = icmp sgt i64 %threads, 1
  br i1 %many, label %parallel, label %serial
parallel:
  %function = load ptr, ptr %ctx
  call void %function(ptr %ctx, ptr @double_region, ptr %closure, i64 {n})
  ret void
serial:
  call void @double_region(ptr %closure, i64 0, i64 0, i64 {n})
  ret void
}}

define void @add(ptr %ctx, ptr %in, ptr %bias, ptr %out, ptr %workspace) {{
entry:
  %first = load float, ptr %in
  %bad = fcmp oeq float %first, 26.0
  br i1 %bad, label %refuse, label %loop
refuse:
  %status = getelementptr i64, ptr %ctx, i64 2
  store i64 513, ptr %status
  ret void
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
  %more = icmp slt i64 %i, {n}
  br i1 %more, label %body, label %done
body:
  %a.p = getelementptr float, ptr %in, i64 %i
  %a = load float, ptr %a.p
  %b.p = getelementptr float, ptr %bias, i64 %i
  %b = load float, ptr %b.p
  %c = fadd float %a, %b
  %c.p = getelementptr float, ptr %out, i64 %i
  store float %c, ptr %c.p
  %next = add i64 %i, 1
  br label %loop
done:
  ret void
}}
"""

_SEGMENT = """
declare void @double(ptr, ptr, ptr, ptr)
declare void @add(ptr, ptr, ptr, ptr, ptr)
declare i64 @llvm.readcyclecounter()

define void @stamp(ptr %ctx, i64 %n) {
  %p.p = getelementptr ptr, ptr %ctx, i64 3
  %p = load ptr, ptr %p.p
  %off = icmp eq ptr %p, null
  br i1 %off, label %done, label %on
on:
  %now = call i64 @llvm.readcyclecounter()
  %at = getelementptr i64, ptr %p, i64 %n
  store i64 %now, ptr %at
  br label %done
done:
  ret void
}

define void @segment(ptr %ctx, ptr %table) {
  %arena = load ptr, ptr %table
  %constants.p = getelementptr ptr, ptr %table, i64 1
  %constants = load ptr, ptr %constants.p
  %in.p = getelementptr ptr, ptr %table, i64 2
  %in = load ptr, ptr %in.p
  %out.p = getelementptr ptr, ptr %table, i64 3
  %out = load ptr, ptr %out.p
  call void @stamp(ptr %ctx, i64 0)
  call void @double(ptr %ctx, ptr %in, ptr %arena, ptr %arena)
  call void @stamp(ptr %ctx, i64 1)
  call void @add(ptr %ctx, ptr %arena, ptr %constants, ptr %out, ptr %arena)
  call void @stamp(ptr %ctx, i64 2)
  ret void
}
"""


def bias(n):
    return np.arange(n, dtype=np.float32)


def expected(x):
    return 2 * x + bias(x.size).reshape(x.shape)


def records():
    return (
        KernelRecord(0, "double", ("mul_1",), 100, 800, "double"),
        KernelRecord(1, "add", ("add_1", "gather_2"), 100, 1200, "add"),
    )


def objects(n):
    return (assemble(_KERNELS.format(n=n)), assemble(_SEGMENT))


def model(n=100):
    x, y = Tensor("x", "float32", (n,)), Tensor("y", "float32", (n,))
    step = NativeStep(
        "segment", (ValueSlot("input", 0, x), ValueSlot("output", 0, y)), records()
    )
    return CompiledModel(
        (x,),
        (y,),
        (step,),
        objects(n),
        (pool_object(),),
        bias(n).view(np.uint8),
        arena_bytes=4 * n,
        requirements={"arch": "x86_64", "features": ["sse2", "cx16", "sse4.2"]},
        meta={"name": "twice"},
    )
