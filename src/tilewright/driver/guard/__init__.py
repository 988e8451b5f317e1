"""Kernels run alone on random data in guarded memory, and judged by their Computations."""

from tilewright.driver.guard.check import EFFORT, share_of, validate
from tilewright.driver.guard.verdict import Fault, Verdict

__all__ = ["EFFORT", "Fault", "Verdict", "share_of", "validate"]
