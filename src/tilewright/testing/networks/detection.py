"""Networks that find objects: pyramids of features, heads at every level, anchors or none."""

from __future__ import annotations

import numpy as np

from tilewright.testing.networks.builder import Net, NetTensor, network


def _levels(
    n: Net,
    size: int = 41,
    batch: int = 1,
) -> list[NetTensor]:
    """Maps of strides 4, 8 and 16."""
    x = n.input(batch, 3, size, size)
    found = []
    x = x.conv(10, 3, 2)
    x = x.max_pool(3, 2, 1)
    stages = (
        (14, 1),
        (20, 2),
        (28, 2),
    )
    for width, stride in stages:
        x = x.conv(width, 3, stride)
        found.append(x)
    return found


def _pyramid(levels: list[NetTensor], width: int = 16) -> list[NetTensor]:
    """Lin et al. 2017: top down, each level added to the one above, enlarged."""
    tops = [x.project(width, 1) for x in levels]
    for place in (1, 0):
        top = tops[place]
        height, width_of = top.shape[2:]
        lifted = tops[place + 1].resize(height, width_of)
        tops[place] = top + lifted
    return [x.project(width) for x in tops]


def _rows(x: NetTensor, columns: int) -> NetTensor:
    """A map of predictions as rows."""
    y = x.transpose(0, 2, 3, 1)
    return y.reshape(x.shape[0], -1, columns)


@network
def feature_pyramid(n: Net) -> list[NetTensor]:
    """With the further level that a pooling of stride 2 makes."""
    levels = _levels(n)
    found = _pyramid(levels)
    further = found[-1].max_pool(1, 2)
    return [*found, further]


@network
def path_aggregation(n: Net) -> list[NetTensor]:
    """Liu et al. 2018: bottom up again after the pyramid."""
    levels = _levels(n)
    low, *rest = _pyramid(levels)
    found = [low]
    for level in rest:
        down = found[-1].conv(16, 3, 2)
        both = n.cat(down, level)
        found.append(both.conv(16, 1))
    return found


@network
def bifpn(n: Net) -> list[NetTensor]:
    """Tan et al. 2020: levels weighed by positive numbers that sum to one."""
    levels = _levels(n)
    low, mid, high = (x.conv(12, 1, act="") for x in levels)

    def mixed(*maps: NetTensor) -> NetTensor:
        count = len(maps)
        weights = n.near(1, count)
        weights = weights.Relu()
        total = weights.ReduceSum([0])
        weights = weights / (total + 1e-4)
        ones = [1] * count
        parts = weights.split(*ones, axis=0)
        weighed = [m * w for m, w in zip(maps, parts, strict=True)]
        y = n.add(*weighed)
        y = y.act("Silu")
        y = y.depthwise(norm=False, act="")
        return y.conv(12, 1, act="")

    above = high.resize(*mid.shape[2:])
    mid = mixed(mid, above)
    above = mid.resize(*low.shape[2:])
    low = mixed(low, above)
    below = low.max_pool(3, 2, 1)
    between = mixed(mid, below)
    below = mid.max_pool(3, 2, 1)
    return [low, between, mixed(high, below)]


@network
def ssd(n: Net) -> list[NetTensor]:
    """Liu et al. 2016: boxes and classes at each level, as rows of one table; L2 normalized."""
    first, *rest = _levels(n)
    unit = first.LpNormalization(axis=1, p=2)
    scaled = unit * n.near(3, 1, 14, 1, 1)
    boxes = []
    classes = []
    for x in (scaled, *rest):
        places = x.project(4 * 3)
        boxes.append(_rows(places, 4))
        scores = x.project(5 * 3)
        classes.append(_rows(scores, 5))
    scores = n.cat(*classes)
    return [n.cat(*boxes), scores.Softmax(axis=-1)]


@network
def retinanet(n: Net) -> list[NetTensor]:
    """Lin et al. 2017b: one head, its weights shared by all levels."""
    weights = [n.weight(16, 16, 3, 3, gain=2.0) for _ in range(2)]
    biases = [n.near(0, 16) for _ in range(2)]
    last = n.weight(15, 16, 3, 3)
    bias = n.near(-1, 15)
    levels = _levels(n)
    pads = [1] * 4
    rows = []
    for x in _pyramid(levels):
        for w, b in zip(weights, biases, strict=True):
            x = x.Conv(w, b, pads=pads)
            x = x.Relu()
        x = x.Conv(last, bias, pads=pads)
        rows.append(_rows(x, 5))
    scores = n.cat(*rows)
    return [scores.Sigmoid()]


@network
def yolo_v3(n: Net) -> list[NetTensor]:
    """Redmon and Farhadi 2018: offsets in cells by sigmoids, sizes by exponentials."""
    found = []
    for x in _levels(n)[1:]:
        b, _, h, w = x.shape
        y = x.conv(18, act="LeakyRelu")
        y = y.project(3 * 7, 1, gain=0.3)
        y = y.reshape(b, 3, 7, h, w)
        y = y.transpose(0, 1, 3, 4, 2)
        place, size, rest = y.split(2, 2, 3, axis=-1)
        place = place.Sigmoid()
        place = place + n.near(2, h, w, 2)
        place = place * (1 / w)
        size = size.Exp()
        size = size * n.near(1, 1, 3, 1, 1, 2)
        rest = rest.Sigmoid()
        y = n.cat(place, size, rest, axis=-1)
        found.append(y.reshape(b, -1, 7))
    return found


@network
def yolo_v8(n: Net) -> list[NetTensor]:
    """Splits and bottlenecks (C2f), poolings in a row (SPPF), distances as softmax of bins."""
    x = n.input(1, 3, 33, 33)
    x = x.conv(12, 3, 2, act="Silu")
    x = x.conv(20, 3, 2, act="Silu")
    y = x.conv(20, 1, act="Silu")
    parts = y.split(10, 10)
    for _ in range(2):
        last = parts[-1]
        y = last.conv(10, act="Silu")
        y = y.conv(10, act="Silu", gain=0.5)
        parts.append(last + y)
    x = n.cat(*parts)
    x = x.conv(20, 1, act="Silu")
    pooled = [x.conv(9, 1, act="Silu")]
    for _ in range(3):
        last = pooled[-1]
        pooled.append(last.max_pool(5, 1, 2))
    x = n.cat(*pooled)
    x = x.conv(20, 1, act="Silu")
    bins = x.project(4 * 8, 1)
    bins = bins.reshape(1, 4, 8, 81)
    bins = bins.transpose(0, 2, 1, 3)
    bins = bins.Softmax(axis=1)
    steps = np.arange(8.0)
    weighed = bins * steps.reshape(1, 8, 1, 1)
    distances = weighed.ReduceSum([1], keepdims=0)
    scores = x.project(5, 1)
    return [distances, scores.Sigmoid()]


@network
def fcos(n: Net) -> list[NetTensor]:
    """Tian et al. 2019: no anchors; distances by exponentials, group normalization."""
    levels = _levels(n)
    found = []
    for x in _pyramid(levels)[:2]:
        y = x.project(16)
        y = y.group_norm(4)
        y = y.Relu()
        distances = y.project(4) * 0.3
        scores = y.conv_bias(5, act="Sigmoid")
        found += [distances.Exp(), scores]
    return found


@network
def centernet(n: Net) -> list[NetTensor]:
    """Zhou et al. 2019: centers are places that a pooling of 3x3 leaves unchanged; the best."""
    x = n.input(1, 3, 27, 27)
    x = x.conv(14, 3, 2)
    heat = x.conv(14)
    heat = heat.project(3, 1)
    heat = heat.Sigmoid()
    largest = heat.max_pool(3, 1, 1)
    peaks = heat.Equal(largest)
    flat = heat * peaks.Cast(to=1)
    flat = flat.reshape(1, -1)
    scores, places = n.many("TopK", 2, flat, [7], axis=-1)
    sizes = x.project(2, 1)
    sizes = sizes.reshape(2, -1)
    at = places.Mod([14 * 14])
    at = at.reshape(-1)
    return [scores, sizes.Gather(at, axis=1)]


@network
def faster_rcnn_head(n: Net) -> NetTensor:
    """Ren et al. 2015: regions of a map, each brought to one size, then two linear layers."""
    x = _levels(n)[0]
    corners = n.uniform(0, 4, 6, 2)
    sizes = n.uniform(3, 6, 6, 2)
    boxes = n.cat(corners, corners + sizes)
    which = n.const(n.rng.integers(0, 1, 6))
    size = {"output_height": 5, "output_width": 5}
    y = x.RoiAlign(boxes, which, sampling_ratio=2, **size)
    y = y.Flatten()
    y = y.gemm(40, "Relu")
    return y.gemm(9)
