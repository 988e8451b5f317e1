"""Networks that find objects: pyramids of features, heads at every level, anchors or none."""

from __future__ import annotations

from tilewright.testing.networks.builder import Net, Tensor, network


def _levels(n: Net, size: int = 41, batch: int = 1) -> list[Tensor]:
    """Maps of strides 4, 8 and 16."""
    x = n.input(batch, 3, size, size)
    found = []
    x = x.conv(10, 3, 2)
    x = x.max_pool(3, 2, 1)
    for width, stride in ((14, 1), (20, 2), (28, 2)):
        x = x.conv(width, 3, stride)
        found.append(x)
    return found


def _pyramid(levels: list[Tensor], width: int = 16) -> list[Tensor]:
    """Lin et al. 2017: top down, each level added to the one above, enlarged."""
    tops = [x.project(width, 1) for x in levels]
    for place in (1, 0):
        lifted = tops[place + 1].resize(*tops[place].shape[2:])
        tops[place] = tops[place] + lifted
    return [x.project(width) for x in tops]


def _rows(x: Tensor, columns: int) -> Tensor:
    """A map of predictions as rows."""
    y = x.transpose(0, 2, 3, 1)
    return y.reshape(x.shape[0], -1, columns)


@network
def feature_pyramid(n: Net) -> list[Tensor]:
    """With the further level that a pooling of stride 2 makes."""
    found = _pyramid(_levels(n))
    return [*found, found[-1].max_pool(1, 2)]


@network
def path_aggregation(n: Net) -> list[Tensor]:
    """Liu et al. 2018: bottom up once more behind the pyramid."""
    found = _pyramid(_levels(n))
    for place in (0, 1):
        down = found[place].conv(16, 3, 2)
        found[place + 1] = n.cat(down, found[place + 1]).conv(16, 1)
    return found


@network
def bifpn(n: Net) -> list[Tensor]:
    """Tan et al. 2020: levels weighed by positive numbers that sum to one."""
    low, mid, high = (x.conv(12, 1, act="") for x in _levels(n))

    def mixed(*maps: Tensor) -> Tensor:
        weights = n.near(1, len(maps)).Relu()
        weights = weights / (weights.ReduceSum([0]) + 1e-4)
        parts = weights.split(*[1] * len(maps), axis=0)
        y = n.add(*(m * w for m, w in zip(maps, parts, strict=True)))
        y = y.act("Silu").depthwise(norm=False, act="")
        return y.conv(12, 1, act="")

    mid = mixed(mid, high.resize(*mid.shape[2:]))
    low = mixed(low, mid.resize(*low.shape[2:]))
    below = mixed(mid, low.max_pool(3, 2, 1))
    return [low, below, mixed(high, mid.max_pool(3, 2, 1))]


@network
def ssd(n: Net) -> list[Tensor]:
    """Liu et al. 2016: boxes and classes at each level, as rows of one table; L2 normalized."""
    first, *rest = _levels(n)
    scaled = first.LpNormalization(axis=1, p=2) * n.near(3, 1, 14, 1, 1)
    boxes = []
    classes = []
    for x in (scaled, *rest):
        boxes.append(_rows(x.project(4 * 3), 4))
        classes.append(_rows(x.project(5 * 3), 5))
    return [n.cat(*boxes), n.cat(*classes).Softmax(axis=-1)]


@network
def retinanet(n: Net) -> list[Tensor]:
    """Lin et al. 2017b: one head, its weights shared by all levels."""
    weights = [n.weight(16, 16, 3, 3, gain=2.0) for _ in range(2)]
    biases = [n.near(0, 16) for _ in range(2)]
    last = n.weight(15, 16, 3, 3)
    bias = n.near(-1, 15)
    rows = []
    for x in _pyramid(_levels(n)):
        for w, b in zip(weights, biases, strict=True):
            x = x.Conv(w, b, pads=[1] * 4).Relu()
        rows.append(_rows(x.Conv(last, bias, pads=[1] * 4), 5))
    return [n.cat(*rows).Sigmoid()]


@network
def yolo_v3(n: Net) -> list[Tensor]:
    """Redmon and Farhadi 2018: offsets in cells by sigmoids, sizes by exponentials."""
    found = []
    for x in _levels(n)[1:]:
        b, _, h, w = x.shape
        y = x.conv(18, act="LeakyRelu")
        y = y.project(3 * 7, 1, gain=0.3)
        y = y.reshape(b, 3, 7, h, w)
        y = y.transpose(0, 1, 3, 4, 2)
        place, size, rest = y.split(2, 2, 3, axis=-1)
        place = (place.Sigmoid() + n.near(2, h, w, 2)) * (1 / w)
        size = size.Exp() * n.near(1, 1, 3, 1, 1, 2)
        found.append(n.cat(place, size, rest.Sigmoid(), axis=-1).reshape(b, -1, 7))
    return found


@network
def yolo_v8(n: Net) -> list[Tensor]:
    """Splits and bottlenecks (C2f), poolings in a row (SPPF), distances as softmax of bins."""
    x = n.input(1, 3, 33, 33)
    x = x.conv(12, 3, 2, act="Silu")
    x = x.conv(20, 3, 2, act="Silu")
    parts = x.conv(20, 1, act="Silu").split(10, 10)
    for _ in range(2):
        y = parts[-1].conv(10, act="Silu")
        y = y.conv(10, act="Silu", gain=0.5)
        parts.append(parts[-1] + y)
    x = n.cat(*parts)
    x = x.conv(20, 1, act="Silu")
    pooled = [x.conv(9, 1, act="Silu")]
    for _ in range(3):
        pooled.append(pooled[-1].max_pool(5, 1, 2))
    x = n.cat(*pooled)
    x = x.conv(20, 1, act="Silu")
    bins = x.project(4 * 8, 1)
    bins = bins.reshape(1, 4, 8, 81)
    bins = bins.transpose(0, 2, 1, 3).Softmax(axis=1)
    steps = n.const([[[[float(k)]] for k in range(8)]])
    distances = (bins * steps).ReduceSum([1], keepdims=0)
    return [distances, x.project(5, 1).Sigmoid()]


@network
def fcos(n: Net) -> list[Tensor]:
    """Tian et al. 2019: no anchors; distances by exponentials, group normalization."""
    found = []
    for x in _pyramid(_levels(n))[:2]:
        y = x.project(16)
        y = y.group_norm(4).Relu()
        distances = (y.project(4) * 0.3).Exp()
        found += [distances, y.conv_bias(5, act="Sigmoid")]
    return found


@network
def centernet(n: Net) -> list[Tensor]:
    """Zhou et al. 2019: centers are places that a pooling of 3x3 leaves as they are; the best."""
    x = n.input(1, 3, 27, 27)
    x = x.conv(14, 3, 2)
    heat = x.conv(14)
    heat = heat.project(3, 1).Sigmoid()
    peaks = heat.Equal(heat.max_pool(3, 1, 1)).Cast(to=1)
    flat = (heat * peaks).reshape(1, -1)
    scores, places = n.many("TopK", 2, flat, [7], axis=-1)
    sizes = x.project(2, 1)
    sizes = sizes.reshape(2, -1)
    at = places.Mod([14 * 14])
    return [scores, sizes.Gather(at.reshape(-1), axis=1)]


@network
def faster_rcnn_head(n: Net) -> Tensor:
    """Ren et al. 2015: regions of a map, each brought to one size, then two linear layers."""
    x = _levels(n)[0]
    boxes = n.uniform(0, 4, 6, 2)
    boxes = n.cat(boxes, boxes + n.uniform(3, 6, 6, 2))
    which = n.const(n.rng.integers(0, 1, 6))
    y = x.RoiAlign(boxes, which, output_height=5, output_width=5, sampling_ratio=2)
    y = y.Flatten().gemm(40, "Relu")
    return y.gemm(9)
