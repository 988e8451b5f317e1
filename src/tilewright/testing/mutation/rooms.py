"""Where faults are seeded, and the fast tests that are to catch them.

What only a test of the whole compiler catches gets through: a room's own tests are to find it.
"""

from __future__ import annotations

from typing import Final

from tilewright.base.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class MutationRoom:
    """Files of `src/tilewright` (patterns allowed), and the tests in the order they are run.

    always: functions, `<file>:<name>`, whose faults are all tried: some got through once.
    """

    files: tuple[str, ...]
    tests: tuple[str, ...]
    always: tuple[str, ...] = ()


ROOMS: Final[dict[str, MutationRoom]] = {
    "dependences": MutationRoom(
        ("loops/analysis/access.py", "loops/analysis/dependence.py", "loops/analysis/effects.py",
         "loops/analysis/isl.py", "loops/analysis/lemmas.py", "loops/analysis/question.py",
         "schedule/legality.py"),
        ("tests/loops/analysis", "tests/schedule/test_order.py", "tests/schedule"),
        always=("loops/analysis/access.py:commute",),
    ),
    "legality": MutationRoom(
        ("schedule/conditions.py", "loops/analysis/region.py", "schedule/staging.py",
         "schedule/slice_nest.py", "schedule/relocate.py", "schedule/simplify_guards.py",
         "schedule/align_rows.py", "schedule/steady.py", "schedule/full_tiles.py",
         "schedule/primitives/*.py"),
        ("tests/loops/analysis", "tests/schedule"),
    ),
    "bounds": MutationRoom(
        ("expr/bounds.py", "expr/affine.py", "compute/check.py", "compute/regions.py",
         "loops/verify.py", "loops/passes/keep_sums.py", "loops/passes/write_out.py",
         "loops/passes/unroll_scatters.py", "loops/passes/ordered_pairs.py"),
        ("tests/expr", "tests/compute/test_check.py", "tests/compute/test_regions.py",
         "tests/loops"),
    ),
    "memory": MutationRoom(
        ("runtime/arena.py", "plan/passes/memory.py", "loops/passes/in_place.py", "plan/offsets.py",
         "plan/verify.py", "plan/verify_memory.py"),
        ("tests/plan/test_memory.py", "tests/plan/test_verify.py",
         "tests/plan/test_verify_memory.py", "tests/plan/test_verify_signature.py",
         "tests/plan/test_concat_in_place.py", "tests/plan/test_passes.py",
         "tests/loops/test_in_place.py", "tests/loops/test_passes.py",
         "tests/driver/test_reused_operands.py"),
        always=("loops/passes/in_place.py:overwritable",),
    ),
    "keys": MutationRoom(
        ("driver/kernels.py", "compute/canonical.py",
         "driver/model_cache.py", "driver/file_digest.py"),
        ("tests/driver/test_model_cache.py", "tests/driver/test_file_digest.py",
         "tests/driver/test_kernel_cache.py", "tests/driver/test_build_kernel.py",
         "tests/driver/test_prepared.py", "tests/driver/test_debug.py",
         "tests/driver/test_sanitize.py", "tests/compute/test_canonical.py"),
        always=("driver/kernels.py:KernelCompiler._key",),
    ),
    "passes": MutationRoom(
        ("graph/passes/*.py", "graph/rules/*.py", "plan/passes/*.py", "compute/merge.py",
         "compute/split_axes.py", "compute/join_axes.py", "compute/separable_windows.py",
         "compute/split_window.py", "compute/channel_groups.py"),
        ("tests/graph/test_rules.py", "tests/graph/test_preconditions.py",
         "tests/graph/test_control_preconditions.py",
         "tests/graph/test_folding.py", "tests/graph/test_idioms.py",
         "tests/graph/test_attention.py", "tests/graph/test_domains.py",
         "tests/graph/test_integer_products.py", "tests/plan", "tests/compute/test_merge.py",
         "tests/compute/test_join_axes.py", "tests/compute/test_transforms.py",
         "tests/compute/test_separable_windows.py", "tests/compute/test_split_sum.py",
         "tests/compute/test_split_window.py", "tests/compute/test_channel_groups.py",
         "tests/driver/test_winograd.py", "tests/driver/test_parts.py"),
    ),
    "texts": MutationRoom(
        ("expr/parser.py", "compute/parser.py", "loops/parser.py", "plan/naming.py",
         "plan/parser.py", "plan/interp.py", "plan/normalize.py"),
        ("tests/expr/test_parser.py", "tests/compute/test_parser.py", "tests/loops/test_parser.py",
         "tests/plan", "tests/driver"),
    ),
    "quantization": MutationRoom(
        ("graph/rules/quantization.py", "graph/rules/quantized.py", "compute/quantized.py",
         "graph/ops/quantize.py", "graph/ops/integer.py"),
        ("tests/graph/test_integer_products.py", "tests/graph/test_ops_quantize.py",
         "tests/graph/test_ops_integer.py", "tests/compute/test_quantized.py",
         "tests/graph/test_preconditions.py", "tests/graph/test_rules.py"),
        always=("graph/rules/quantization.py:same_quantization",),
    ),
    "artifacts": MutationRoom(
        ("runtime/bundle.py", "runtime/manifest.py", "runtime/schema.py", "runtime/loader.py",
         "runtime/elf.py", "base/store.py", "base/files.py"),
        ("tests/base", "tests/runtime", "tests/robust/test_disks.py",
         "tests/robust/test_mutants.py"),
    ),
}  # fmt: skip
