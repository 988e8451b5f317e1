"""Optimizers: updates of parameters from their gradients, as operators.

Each keeps some tensors of the parameter's shape between steps (`states`). The rate, and factors
that depend on the step number, are inputs of the step (`factors`), so they can change without
recompiling.

Sources: momentum as PyTorch has it (v = beta * v + g); Adam: Kingma and Ba, "Adam: a method for
stochastic optimization", ICLR 2015; AdamW: Loshchilov and Hutter, "Decoupled weight decay
regularization", ICLR 2019.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError
from tilewright.graph.loss_scale import LossScale as LossScale  # of `tw.optim`, too
from tilewright.graph.nodes import Value
from tilewright.graph.ops.terms import TensorTerm


@dataclass(frozen=True)
class ParameterUpdate:
    """One parameter in a step. p: its value, g: its gradient, states: its saved tensors.

    rate and factors: scalars of its type.
    """

    p: TensorTerm
    g: TensorTerm
    states: Sequence[TensorTerm]
    rate: TensorTerm
    factors: Sequence[TensorTerm]

    def decayed(self, decay: float) -> TensorTerm:
        """The gradient plus that of the L2 penalty."""
        return self.g + self.p * decay if decay else self.g


def _mixed(old: TensorTerm, new: TensorTerm, beta: float) -> TensorTerm:
    return old * beta + new * (1 - beta)


class Optimizer(ABC):
    """How a parameter is updated. states: the number of tensors saved per parameter."""

    learning_rate: float
    states: ClassVar[int]

    def __post_init__(self) -> None:
        _check(self)

    def factors(self, step: int) -> tuple[float, ...]:
        """Factors at step number `step`, counted from 1, in addition to the rate."""
        return ()

    @abstractmethod
    def update(self, u: ParameterUpdate) -> list[TensorTerm]:
        """The new parameter, and its new states."""


@dataclass(frozen=True)
class SGD(Optimizer):
    """p - rate * (g + weight_decay * p)."""

    learning_rate: float = 0.01
    weight_decay: float = 0.0

    states = 0

    def update(self, u: ParameterUpdate) -> list[TensorTerm]:
        step = u.decayed(self.weight_decay)
        return [u.p - u.rate * step]


@dataclass(frozen=True)
class Momentum(Optimizer):
    """v = beta * v + g; p - rate * v, or with nesterov p - rate * (g + beta * v)."""

    learning_rate: float = 0.01
    beta: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0

    states = 1

    def update(self, u: ParameterUpdate) -> list[TensorTerm]:
        g = u.decayed(self.weight_decay)
        v = u.states[0] * self.beta + g
        step = g + v * self.beta if self.nesterov else v
        return [u.p - u.rate * step, v]


@dataclass(frozen=True)
class Adam(Optimizer):
    """p - rate * m' / (sqrt(v') + epsilon) with bias-corrected first and second moments m', v'."""

    learning_rate: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    states = 2
    decoupled = False

    def factors(self, step: int) -> tuple[float, ...]:
        """The factors that correct the moments' bias at step number `step`, counted from 1."""
        return 1 / (1 - self.beta1**step), 1 / (1 - self.beta2**step)

    def update(self, u: ParameterUpdate) -> list[TensorTerm]:
        g = u.g
        start = u.p
        if not self.decoupled:
            g = u.decayed(self.weight_decay)
        elif self.weight_decay:
            start = u.p - u.rate * self.weight_decay * u.p
        m = _mixed(u.states[0], g, self.beta1)
        v = _mixed(u.states[1], g * g, self.beta2)
        first = m * u.factors[0]
        second = (v * u.factors[1]).op("Sqrt")
        self._check_epsilon(u.p.value)
        step = first / (second + self.epsilon)
        return [start - u.rate * step, m, v]

    def _check_epsilon(self, p: Value) -> None:
        """Raises InputError if it is 0 in the type of `p`, as a zero gradient would give 0 / 0."""
        assert p.dtype is not None
        if self.epsilon and not np.array(self.epsilon).astype(p.dtype.numpy):
            raise InputError(
                f"{type(self).__name__}: epsilon={self.epsilon} is 0 in {p.dtype}, "
                f"the type of {p.name!r}",
                hint="use a larger one (1e-4), or train in float32",
            )


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with weight decay apart from the gradient: rate * weight_decay * p."""

    weight_decay: float = 0.01

    decoupled = True


def _check(optimizer: Optimizer) -> None:
    """Raise InputError for a setting that is out of range."""
    for name, value in vars(optimizer).items():
        below_one = name.startswith("beta")
        number = isinstance(value, int | float)
        if not number or not 0 <= value < (1 if below_one else math.inf):
            raise InputError(
                f"{type(optimizer).__name__}: {name}={value!r}",
                hint="0 or more" + (", below 1" if below_one else ""),
            )
