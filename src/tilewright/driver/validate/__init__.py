"""Kernels run alone on random data in guarded memory, and judged by their Computations."""

from tilewright.driver.validate.check import EFFORT, share_of, validate
from tilewright.driver.validate.model import kind_of, validate_model, validate_stages
from tilewright.driver.validate.verdict import Fault, Verdict

__all__ = [
    "EFFORT",
    "Fault",
    "Verdict",
    "kind_of",
    "share_of",
    "validate",
    "validate_model",
    "validate_stages",
]
