"""Small-width networks of many architectures with He-scaled random weights, by name.

Widths and images are small and seldom multiples of a vector; what makes an architecture (strides,
overlapping windows, groups, dilations, concatenations, residuals, orders of axes) is kept.
"""

from __future__ import annotations

from tilewright.testing.networks import (
    dense,
    detection,
    generative,
    graph_like,
    mobile,
    quantized,
    recurrent,
    residual,
    segmentation,
    transformer,
    volumetric,
)
from tilewright.testing.networks.builder import NETWORKS, Net

FAMILIES = {
    "residual": residual,
    "dense": dense,
    "mobile": mobile,
    "segmentation": segmentation,
    "detection": detection,
    "transformer": transformer,
    "recurrent": recurrent,
    "generative": generative,
    "volumetric": volumetric,
    "graph_like": graph_like,
    "quantized": quantized,
}

__all__ = ["FAMILIES", "NETWORKS", "Net"]
