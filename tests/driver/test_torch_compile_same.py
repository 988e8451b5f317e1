"""Gradients of operators that take one tensor as several arguments."""

import warnings

import pytest

from tilewright.base.errors import TilewrightWarning
from tilewright.driver.torch_backend import backend

torch = pytest.importorskip("torch")
F = torch.nn.functional

FUNCTIONS = {
    "attention to itself": lambda x: F.scaled_dot_product_attention(x, x, x),
    "attention to what is fixed": lambda x: F.scaled_dot_product_attention(
        x, x.detach(), x.detach()
    ),
    "a fixed query": lambda x: F.scaled_dot_product_attention(x.detach(), x, x),
    "filters of itself": lambda x: F.conv2d(x, x, padding=1),
    "fixed filters": lambda x: F.conv2d(x, x.detach(), padding=1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_argument_has_its_own_gradient(name):
    torch._dynamo.reset()
    torch.manual_seed(0)
    given = torch.randn(2, 2, 3, 4)
    found = []
    for f in (torch.compile(FUNCTIONS[name], backend=backend), FUNCTIONS[name]):
        x = given.clone().requires_grad_()
        with warnings.catch_warnings():
            warnings.simplefilter("error", TilewrightWarning)
            y = f(x)
            found.append((y, torch.autograd.grad(y.square().sum(), x)))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
