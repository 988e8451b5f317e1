"""Everything that a deployed model needs, and nothing more: bundles, loader, executor, threads.

Read `model`, `executable` and `call` first. The files, by subject:

a model as data: model, manifest, schema, packing, conditions, formulas, open_model, ranged_model
artifacts: bundle, ranged_bundle, own_constants, packed, digest, halves
machine code: elf, relocations, linking, loader, abi, machine, gdb
a call: executable, call, fast_call, inputs, outputs, overrides, nesting, host, trim
a call of any shape: dispatch, ranged
memory: arena, buffer, array_view
threads: pool, threads
devices: device, devices, device_steps, device_call, device_tensor, capsule, dlpack
where the time goes: profile, timeline, device_time, instruction_mix, x86
"""
