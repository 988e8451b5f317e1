"""The driver: all steps from a model to an Executable; `compile` reads top to bottom.

Read `compile` and `steps` first: these have the whole order. The other files, by subject:

the order: compile, steps, compilation, compile_lock, sources, recipe, options, keywords, version,
    emulated, show, explain
graphs: graph_passes, graph_digest, graph_cost, remembered, substitution, optimize, quantize,
    differentiate, training, torch_backend
kernels: planning, chosen_schedules, schedule_records, kernels, compiled, early_kernels, processes,
    device_kernels, build_kernel, c_library, library
constants: constants, prepare, packing
kernels as one model: built, assemble, segment, aliases
caches: model_cache, cache_entries, file_digest, left_work
tiers: tiered, first_tier, background
shapes known at a call, compiled each: dynamic, deciding_inputs, sized
which sizes of ranges share code: ranges, ranged, sample_points, between, step_hint, generalize,
    plan_merger, reshaped_axes, size_terms, reach
code for ranges of sizes: open_model, open_code, open_constants, open_work, open_check,
    open_resizes, part_assembly, row_blocks, units, positions, position_blocks, block_counts
checks of results: validate, guard, reference, same_results, in_network, random_inputs
tuning: tune_face, tuning, tuning_session, tasks, tuned, program_tuning, schedulable, advice
"""

from tilewright.driver.compile import compile, schedules, text

__all__ = ["compile", "schedules", "text"]
