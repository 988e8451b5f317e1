"""Models for ranges of sizes: which sizes share code, and that code. Start with `ranged`.

which sizes share code: ranged, range_parts, sample_points, between, step_hint, generalize,
    plan_merger, reshaped_axes, shape_arithmetic, size_terms, size_products
code for all of them: open_model, open_code, open_arrays, open_constants, repeated_constants,
    open_work, open_check, open_resizes
its kernels: part_assembly, row_blocks, units, positions, position_blocks, block_counts
"""
