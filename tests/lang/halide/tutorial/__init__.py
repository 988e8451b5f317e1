"""Programs of Halide's tutorial, for any package with Halide's interface."""

from tests.lang.halide.tutorial import first, later
from tests.lang.halide.tutorial.common import LESSONS, PROGRAMS

__all__ = ["LESSONS", "PROGRAMS", "first", "later"]
