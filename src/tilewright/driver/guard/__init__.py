"""Kernel validation: kernels run in isolation, in guarded memory, against their Computations."""

from tilewright.driver.guard.check import EFFORT, share_of, validate
from tilewright.driver.guard.verdict import Fault, Verdict

__all__ = ["EFFORT", "Fault", "Verdict", "share_of", "validate"]
