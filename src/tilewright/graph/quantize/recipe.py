"""How a model is quantized: the options of the quantizer, checked."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.base.arguments import expect, expect_choice
from tilewright.base.dataclass import dataclass
from tilewright.graph.quantize.affine import ACTIVATIONS, activations_in
from tilewright.graph.quantize.observers import (
    METHODS,
    Observer,
    Quantizer,
    observer_of,
)

ROUNDINGS = ("nearest", "gptq")


@dataclass(frozen=True, slots=True)
class QuantizationRecipe:
    """The steps of quantization, in this order.

    equalize: give neighboring layers' weights the same range per channel. smooth: the strength, 0
    to 1, with which outliers of activations move into weights (None: off). search: move ranges of
    activations into weights as far as this helps rounded weights. method, percentile: how the
    ranges of activations are chosen (`observers.METHODS`). activations: "uint8" or "int8". weights:
    how they are rounded, "nearest" or "gptq". correct_bias: compensate for the mean error that
    rounded weights cause.
    """

    method: str = "min-max"
    percentile: float | None = None
    activations: str = "uint8"
    rounding: str = "nearest"
    equalize: bool = False
    smooth: float | None = None
    search: bool = False
    correct_bias: bool = False

    def __post_init__(self) -> None:
        """Raises InputError for an invalid value of an option."""
        expect(
            equalize=self.equalize,
            smooth=self.smooth,
            search=self.search,
            correct_bias=self.correct_bias,
        )
        expect_choice("method", self.method, METHODS)
        expect_choice("activations", self.activations, ACTIVATIONS)
        expect_choice("rounding", self.rounding, ROUNDINGS)
        observer_of(self.method, self.percentile)

    @property
    def observer(self) -> Callable[[], Observer]:
        """Make an observer of a tensor."""
        return observer_of(self.method, self.percentile)

    @property
    def quantizer(self) -> Quantizer:
        """Range -> Affine."""
        quantizer: Quantizer = activations_in(self.activations)
        return quantizer
