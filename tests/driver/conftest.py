"""What several tests of the driver share."""

import warnings

import pytest

from tilewright.base.errors import TilewrightWarning


@pytest.fixture
def fresh_capture():
    """Nothing that another test captured, and no graph that PyTorch runs without a word."""
    torch = pytest.importorskip("torch")
    torch._dynamo.reset()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", TilewrightWarning)
        yield
