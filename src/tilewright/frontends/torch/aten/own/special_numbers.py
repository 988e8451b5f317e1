"""Numbers in place of NaN and infinities."""

from __future__ import annotations

from typing import Any

from tilewright.frontends.torch.aten.own.table import decomposes


@decomposes("aten.nan_to_num.default")
def _numbers(
    x: Any,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Any:
    """PyTorch's decomposition, of complex tensors on each part, as its kernel does."""
    import torch

    numbers: Any = torch._refs.nan_to_num
    if not x.is_complex():
        return numbers(x, nan, posinf, neginf)
    pairs = numbers(torch.view_as_real(x), nan, posinf, neginf)
    return torch.view_as_complex(pairs)
