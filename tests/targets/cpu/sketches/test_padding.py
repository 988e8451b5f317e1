"""When an input is copied with its padding, and when it is read under guards."""

import pytest

from tilewright.driver.tasks import tasks
from tilewright.testing.networks.builder import Net


def padded(mcpu, channels, extent, size, stride=1, groups=None):
    n = Net("one")
    x = n.input(1, channels, extent, extent)
    if groups is None:
        y = x.depthwise(size, stride)
    else:
        y = x.conv(32, size, stride, groups=groups)
    found = tasks(n.case([y]).graph, threads=1, mcpu=mcpu, records=False)
    values = [t.space.default().values for t in found]
    (copied,) = (v for all_ in values for k, v in all_.items() if k.startswith("pad."))
    return copied


@pytest.mark.parametrize(
    ("mcpu", "channels", "extent", "size", "stride", "expected"),
    [
        # A window of nine elements costs less than a copy where masks have registers...
        ("x86-64-v4", 32, 28, 3, 1, False),
        ("x86-64-v4", 32, 28, 3, 2, False),
        # ... and elsewhere if few of them are read, or rows are short.
        ("x86-64-v3", 32, 28, 3, 1, True),
        ("x86-64-v3", 32, 28, 3, 2, False),
        ("x86-64-v3", 32, 7, 3, 1, False),
        # Lanes that lie further apart, larger windows, and processors that read lane by lane.
        ("x86-64-v4", 32, 56, 3, 4, True),
        ("x86-64-v4", 32, 28, 5, 2, True),
        ("x86-64-v2", 32, 28, 3, 2, True),
        ("neoverse-n1", 32, 28, 3, 2, True),
    ],
)
def test_small_windows_are_read_under_guards(
    mcpu, channels, extent, size, stride, expected
):
    assert padded(mcpu, channels, extent, size, stride) is expected


def test_what_several_results_read_is_copied():
    # Nine elements of one channel, by the 32 channels of the results.
    assert padded("x86-64-v4", 1, 28, 3, groups=1)
