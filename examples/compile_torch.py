"""Compile a PyTorch module and compare it with PyTorch; tensors in, tensors out.

python examples/compile_torch.py
"""

import torch

import tilewright as tw


class Block(torch.nn.Module):
    """A transformer's feed-forward block: normalize, widen, GELU, narrow, add."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def main() -> None:
    torch.manual_seed(0)
    block = Block(256).eval()
    x = torch.randn(1, 128, 256)
    exe = tw.compile(
        block, (x,)
    )  # through torch.export; the shapes of the example are fixed
    with torch.no_grad():
        expected = block(x)
    y = exe(x)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)
    print(f"{type(y).__name__} {tuple(y.shape)}, agrees with PyTorch")
    print(exe.profile(x))


if __name__ == "__main__":
    main()
