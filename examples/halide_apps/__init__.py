"""Halide's apps, ported as a user of its Python bindings writes them.

Each module defines `build(hl, *images)`, which takes the module (`halide` or `tilewright.halide`)
and its images, and returns the output, scheduled by the hand schedule of the app's own generator
for a CPU. `APP` says on which images and for which region. `benchmarks/halide_apps.py` times both
modules side by side; `tests/lang/halide/test_apps.py` compares their results.
"""
