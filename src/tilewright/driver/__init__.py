"""The driver: all steps from a model to an Executable; `compile` reads top to bottom.

Read `compile` and `steps` first: these have the whole order. The other files, by subject:

the order: compile, steps, stages, compilation, compile_lock, sources, recipe, options, keywords,
    version, emulated, show, explain
graphs: graph_passes, graph_digest, graph_cost, remembered, substitution, optimize, quantize,
    differentiate, training, torch_backend
kernels: planning, plan_code, chosen_schedules, chosen_decisions, schedule_records, kernels,
    compiled, reach, early_kernels, processes, device_kernels, build_kernel, c_library, library
constants: constants, prepare, packing
kernels as one model: built, assemble, segment, aliases
caches: model_cache, cache_entries, file_digest, left_work
tiers: tiered, first_tier, background
shapes known at a call, compiled each: dynamic, deciding_inputs, sized
shapes in ranges, with code for all of them: dims, ranges
checks of results: validate, guard, reference, same_results, in_network, random_inputs
tuning: tune_face, tuning, tuning_session, tasks, decision_tasks, tuned, program_tuning,
    schedulable, advice
"""

from tilewright.driver.compile import compile, schedules, text

__all__ = ["compile", "schedules", "text"]
