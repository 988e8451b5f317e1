"""Kernel validation: run kernels in guarded memory and compare with their Computations."""

from tilewright.driver.guard.check import EFFORT, share_of, validate
from tilewright.driver.guard.verdict import Fault, Verdict

__all__ = ["EFFORT", "Fault", "Verdict", "share_of", "validate"]
