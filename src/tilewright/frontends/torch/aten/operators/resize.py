"""Resizing images."""

from __future__ import annotations

import numpy as np

from tilewright.frontends.torch.aten.rules import AtenCall, rule
from tilewright.graph.nodes import Value

_MODES = {
    "nearest": "nearest",
    "linear": "linear",
    "bilinear": "linear",
    "trilinear": "linear",
    "bicubic": "cubic",
}

# As in PIL: weights of elements outside of the image count for those inside.
_SMOOTH = {"antialias": 1, "exclude_outside": 1, "cubic_coeff_a": -0.5}


@rule(
    "aten.upsample_nearest1d",
    "aten.upsample_nearest2d",
    "aten.upsample_nearest3d",
    "aten._upsample_nearest_exact1d",
    "aten._upsample_nearest_exact2d",
    "aten._upsample_nearest_exact3d",
    "aten.upsample_linear1d",
    "aten.upsample_bilinear2d",
    "aten.upsample_trilinear3d",
    "aten.upsample_bicubic2d",
    "aten._upsample_bilinear2d_aa",
    "aten._upsample_bicubic2d_aa",
)
def _resized(c: AtenCall) -> Value:
    name = c.name.split(".")[1]
    kind = name.strip("_a").removeprefix("upsample_").rstrip("123d")
    exact = kind.startswith("nearest_exact")
    mode = _MODES["nearest" if exact else kind]
    if mode != "nearest" and not c.dtype.is_float:
        raise c.refuse(f"it interpolates {c.dtype.name}: convert to float32, and round")
    axes = c.rank("input" if c.has("input") else "self") - 2
    how: dict[str, object] = {"mode": mode, "cubic_coeff_a": -0.75}
    if name.endswith("_aa"):
        how |= _SMOOTH
        if c["align_corners"]:
            raise c.refuse("it aligns corners of smoothed images")
    if mode == "nearest":
        where = "half_pixel" if exact else "asymmetric"
        how |= {"coordinate_transformation_mode": where}
        how |= {"nearest_mode": "round_prefer_ceil" if exact else "floor"}
    elif c["align_corners"]:
        how |= {"coordinate_transformation_mode": "align_corners"}
    else:
        how |= {"coordinate_transformation_mode": "half_pixel"}
    x = c.tensor("input" if c.has("input") else "self")
    scales = _scales(c, axes)
    sizes = c["output_size"]
    fixed = c.fixed()
    if c["align_corners"] and fixed is not None:
        sizes = fixed[2:]  # corners are those of whole extents, with or without scales
    elif scales is not None:
        if c["align_corners"]:
            raise c.refuse(
                "the extents whose corners it aligns are known only at run time"
            )
        return c.op("Resize", x, None, scales, **how)
    if sizes is None:
        raise c.refuse("neither its size nor its scales are given")
    return c.op(
        "Resize", x, None, None, c.sizes(sizes), axes=list(range(2, axes + 2)), **how
    )


def _scales(c: AtenCall, axes: int) -> Value | None:
    """The given scales, if any: they determine the positions of elements."""
    given = c["scale_factors"]
    if given is None:
        parts = [
            c[n]
            for n in ("scales_d", "scales_h", "scales_w", "scales")
            if n in c.arguments
        ]
        if parts and all(p is not None for p in parts):
            given = parts
        else:
            given = None
    if given is None or not all(isinstance(n, int | float) for n in given):
        return None
    return c.build.constant(np.asarray([1, 1, *given], np.float32))


@rule("aten.grid_sampler", "aten.grid_sampler_2d", "aten.grid_sampler_3d")
def _grid_sample(c: AtenCall) -> Value:
    if (c["interpolation_mode"], c["padding_mode"]) == (2, 1):
        raise c.refuse("it interpolates cubically between elements beyond the border")
    how = {
        "mode": ("linear", "nearest", "cubic")[int(c["interpolation_mode"])],
        "padding_mode": ("zeros", "border", "reflection")[int(c["padding_mode"])],
        "align_corners": int(c["align_corners"]),
    }
    return c.op("GridSample", c.tensor("input"), c.tensor("grid"), **how)
