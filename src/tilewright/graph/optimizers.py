"""Optimizers: what a parameter becomes from its gradient, as operators.

Each keeps some tensors of the parameter's shape between steps (`states`). The rate, and factors
that depend on the number of the step, are inputs of the step (`factors`), so that they may change
without a new compilation.

Sources: momentum as PyTorch has it (v = beta * v + g); Adam: Kingma and Ba, "Adam: a method for
stochastic optimization", ICLR 2015; AdamW: Loshchilov and Hutter, "Decoupled weight decay
regularization", ICLR 2019.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.base.errors import InputError
from tilewright.graph.nodes import Value
from tilewright.graph.ops.fragment import Fragment

Formula = Callable[..., Value]


@dataclass(frozen=True)
class SGD:
    """p - rate * (g + weight_decay * p)."""

    learning_rate: float = 0.01
    weight_decay: float = 0.0

    states = 0

    def __post_init__(self) -> None:
        _check(self)

    def factors(self, step: int) -> tuple[float, ...]:
        """What step number `step`, from 1, is multiplied by besides the rate."""
        return ()

    def update(
        self,
        f: Fragment,
        p: Value,
        g: Value,
        states: Sequence[Value],
        rate: Value,
        factors: Sequence[Value],
    ) -> list[Value]:
        """The new parameter, and its new states."""
        g = _decayed(f, p, g, self.weight_decay)
        return [f.op("Sub", p, f.op("Mul", rate, g))]


@dataclass(frozen=True)
class Momentum:
    """v = beta * v + g; p - rate * v, or with nesterov p - rate * (g + beta * v)."""

    learning_rate: float = 0.01
    beta: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0

    states = 1

    def __post_init__(self) -> None:
        _check(self)

    def factors(self, step: int) -> tuple[float, ...]:
        """None besides the rate."""
        return ()

    def update(
        self,
        f: Fragment,
        p: Value,
        g: Value,
        states: Sequence[Value],
        rate: Value,
        factors: Sequence[Value],
    ) -> list[Value]:
        """The new parameter, and its new velocity."""
        g = _decayed(f, p, g, self.weight_decay)
        kept = _times(f, states[0], self.beta)
        v = f.op("Add", kept, g)
        step = f.op("Add", g, _times(f, v, self.beta)) if self.nesterov else v
        return [f.op("Sub", p, f.op("Mul", rate, step)), v]


@dataclass(frozen=True)
class Adam:
    """p - rate * m' / (sqrt(v') + epsilon) of unbiased first and second moments m', v'."""

    learning_rate: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    states = 2
    decoupled = False

    def __post_init__(self) -> None:
        _check(self)

    def factors(self, step: int) -> tuple[float, ...]:
        """What makes the moments unbiased at step number `step`, from 1."""
        return 1 / (1 - self.beta1**step), 1 / (1 - self.beta2**step)

    def update(
        self,
        f: Fragment,
        p: Value,
        g: Value,
        states: Sequence[Value],
        rate: Value,
        factors: Sequence[Value],
    ) -> list[Value]:
        """The new parameter, and its new moments."""
        start = p
        if not self.decoupled:
            g = _decayed(f, p, g, self.weight_decay)
        elif self.weight_decay:
            shrink = f.op("Mul", rate, f.constant(self.weight_decay, p.dtype))
            start = f.op("Sub", p, f.op("Mul", shrink, p))
        m = _mixed(f, states[0], g, self.beta1)
        v = _mixed(f, states[1], f.op("Mul", g, g), self.beta2)
        first = f.op("Mul", m, factors[0])
        second = f.op("Sqrt", f.op("Mul", v, factors[1]))
        below = f.op("Add", second, self._epsilon(f, p))
        step = f.op("Div", first, below)
        return [f.op("Sub", start, f.op("Mul", rate, step)), m, v]

    def _epsilon(self, f: Fragment, p: Value) -> Value:
        """Raises InputError where it is 0 in the type of `p`: what never moves would be 0 / 0."""
        assert p.dtype is not None
        if self.epsilon and not np.array(self.epsilon).astype(p.dtype.numpy):
            raise InputError(
                f"{type(self).__name__}: epsilon={self.epsilon} is 0 in {p.dtype}, "
                f"the type of {p.name!r}",
                hint="take a larger one (1e-4), or train in float32",
            )
        return f.constant(self.epsilon, p.dtype)


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with weight decay apart from the gradient: rate * weight_decay * p."""

    weight_decay: float = 0.01

    decoupled = True


Optimizer = SGD | Momentum | Adam


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


def _times(f: Fragment, v: Value, factor: float) -> Value:
    return f.op("Mul", v, f.constant(factor, v.dtype))


def _mixed(
    f: Fragment,
    old: Value,
    new: Value,
    beta: float,
) -> Value:
    """beta * old + (1 - beta) * new"""
    kept = _times(f, old, beta)
    added = _times(f, new, 1 - beta)
    return f.op("Add", kept, added)


def _decayed(
    f: Fragment,
    p: Value,
    g: Value,
    decay: float,
) -> Value:
    """The gradient with that of the L2 penalty."""
    return f.op("Add", g, _times(f, p, decay)) if decay else g
