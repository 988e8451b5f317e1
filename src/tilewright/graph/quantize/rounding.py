"""Rounding weights with regard to the data they multiply (GPTQ, Frantar et al. 2023).

Weights are rounded input by input, and the inputs not yet rounded compensate each error: with H =
X^T X, they minimize the remaining `|X (W - W')|`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.graph.quantize.affine import Weights, channel_scales
from tilewright.graph.quantize.layers import Layer
from tilewright.graph.quantize.statistics import columns_of, weights_of

Array = NDArray[Any]
_DAMPING = 0.01  # share of the mean of H's diagonal that is added to it
_BLOCK = 128  # inputs whose corrections are applied to the rest at once


def round_by_data(
    layer: Layer,
    w: Array,
    gram: Array,
) -> Weights:
    """A layer's weights in int8. gram: X^T X of its data, float64 [terms, terms]."""
    scales = channel_scales(w, layer.channels)
    left = columns_of(layer, w).astype(np.float64)
    whole = _rounded(left, scales.astype(np.float64), _factor(gram))
    return Weights(weights_of(layer, whole, w).astype(np.int8), scales, layer.channels)


def _factor(gram: Array) -> Array:
    """The upper Cholesky factor of the inverse of the damped matrix."""
    h = np.array(gram, np.float64)
    diagonal = np.einsum("ii->i", h)
    diagonal += _DAMPING * diagonal.mean() if diagonal.any() else 1.0
    inverse = np.linalg.inv(h)
    # Rounding errors leave the inverse slightly asymmetric.
    return np.linalg.cholesky((inverse + inverse.T) / 2).T


def _rounded(
    left: Array,
    scales: Array,
    factor: Array,
) -> Array:
    """The integers [results, terms]; `left` is overwritten."""
    terms = left.shape[1]
    whole = np.empty_like(left)
    for start in range(0, terms, _BLOCK):
        end = min(start + _BLOCK, terms)
        errors = np.empty((len(left), end - start))
        for j in range(start, end):
            column = left[:, j]
            whole[:, j] = np.clip(np.rint(column / scales), -127, 127)
            error = (column - whole[:, j] * scales) / factor[j, j]
            left[:, j:end] -= np.outer(error, factor[j, j:end])
            errors[:, j - start] = error
        left[:, end:] -= errors @ factor[start:end, end:]
    return whole
