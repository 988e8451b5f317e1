"""Reads of images at real positions."""

from __future__ import annotations

from typing import Any, Final

from tilewright.frontends.torch.aten.own.table import decomposes

_BICUBIC: Final = 2
_BORDER: Final = 1


@decomposes("aten.grid_sampler_2d.default")
def _cubic_beyond_the_border(
    x: Any, grid: Any, interpolation: int, padding: int, corners: bool
) -> Any:
    """PyTorch's decomposition, which moves each element under the filter to the border. ONNX's
    operator moves the position of the filter, which is the same only for other filters."""
    from torch._decomp.decompositions import grid_sampler_2d

    if (interpolation, padding) != (_BICUBIC, _BORDER):
        return NotImplemented
    decomposed: Any = grid_sampler_2d
    return decomposed(x, grid, interpolation, padding, corners)
