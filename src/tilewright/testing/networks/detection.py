"""Networks that find objects: pyramids of features, heads at every level, anchors or none."""

from __future__ import annotations

from tilewright.graph.nodes import Value
from tilewright.testing.networks.builder import Net, network


def _levels(n: Net, size: int = 41, batch: int = 1) -> list[Value]:
    """Maps of strides 4, 8 and 16."""
    x, found = n.pool(n.conv(n.input(batch, 3, size, size), 10, 3, 2), 3, 2, 1), []
    for width, stride in ((14, 1), (20, 2), (28, 2)):
        x = n.conv(x, width, 3, stride)
        found.append(x)
    return found


def _pyramid(n: Net, levels: list[Value], width: int = 16) -> list[Value]:
    """Lin et al. 2017: top down, each level added to the one above, enlarged."""
    tops = [n.conv(x, width, 1, norm=False, act="") for x in levels]
    for place in (1, 0):
        lifted = n.resize(tops[place + 1], *tops[place].extents[2:])
        tops[place] = n("Add", tops[place], lifted)
    return [n.conv(x, width, norm=False, act="") for x in tops]


def _rows(n: Net, x: Value, columns: int) -> Value:
    """A map of predictions as rows."""
    return n.shape(n.order(x, 0, 2, 3, 1), x.extents[0], -1, columns)


@network
def feature_pyramid(n: Net) -> list[Value]:
    """With the further level that a pooling of stride 2 makes."""
    found = _pyramid(n, _levels(n))
    return [*found, n.pool(found[-1], 1, 2)]


@network
def path_aggregation(n: Net) -> list[Value]:
    """Liu et al. 2018: bottom up once more behind the pyramid."""
    found = _pyramid(n, _levels(n))
    for place in (0, 1):
        down = n.conv(found[place], 16, 3, 2)
        found[place + 1] = n.conv(n.cat(down, found[place + 1]), 16, 1)
    return found


@network
def bifpn(n: Net) -> list[Value]:
    """Tan et al. 2020: levels weighed by positive numbers that sum to one."""
    low, mid, high = (n.conv(x, 12, 1, act="") for x in _levels(n))

    def mixed(*maps: Value) -> Value:
        weights = n("Relu", n.near(1, len(maps)))
        weights = n("Div", weights, n("Add", n("ReduceSum", weights, [0]), 1e-4))
        parts = n.split(weights, *[1] * len(maps), axis=0)
        y = n.add(*(n("Mul", m, w) for m, w in zip(maps, parts, strict=True)))
        return n.conv(n.depthwise(n.act(y, "Silu"), norm=False, act=""), 12, 1, act="")

    mid = mixed(mid, n.resize(high, *mid.extents[2:]))
    low = mixed(low, n.resize(mid, *low.extents[2:]))
    return [low, mixed(mid, n.pool(low, 3, 2, 1)), mixed(high, n.pool(mid, 3, 2, 1))]


@network
def ssd(n: Net) -> list[Value]:
    """Liu et al. 2016: boxes and classes at each level, as rows of one table; L2 normalized."""
    first, *rest = _levels(n)
    scaled = n("Mul", n("LpNormalization", first, axis=1, p=2), n.near(3, 1, 14, 1, 1))
    boxes, classes = [], []
    for x in (scaled, *rest):
        boxes.append(_rows(n, n.conv(x, 4 * 3, norm=False, act=""), 4))
        classes.append(_rows(n, n.conv(x, 5 * 3, norm=False, act=""), 5))
    return [n.cat(*boxes), n("Softmax", n.cat(*classes), axis=-1)]


@network
def retinanet(n: Net) -> list[Value]:
    """Lin et al. 2017b: one head, its weights shared by all levels."""
    weights = [n.weight(16, 16, 3, 3, gain=2.0) for _ in range(2)]
    biases = [n.near(0, 16) for _ in range(2)]
    last, bias = n.weight(15, 16, 3, 3), n.near(-1, 15)
    rows = []
    for x in _pyramid(n, _levels(n)):
        for w, b in zip(weights, biases, strict=True):
            x = n("Relu", n("Conv", x, w, b, pads=[1] * 4))
        rows.append(_rows(n, n("Conv", x, last, bias, pads=[1] * 4), 5))
    return [n("Sigmoid", n.cat(*rows))]


@network
def yolo_v3(n: Net) -> list[Value]:
    """Redmon and Farhadi 2018: offsets in cells by sigmoids, sizes by exponentials."""
    found = []
    for x in _levels(n)[1:]:
        b, _, h, w = x.extents
        y = n.conv(n.conv(x, 18, act="LeakyRelu"), 3 * 7, 1, norm=False, act="", gain=0.3)
        y = n.order(n.shape(y, b, 3, 7, h, w), 0, 1, 3, 4, 2)
        place, size, rest = n.split(y, 2, 2, 3, axis=-1)
        place = n("Mul", n("Add", n("Sigmoid", place), n.near(2, h, w, 2)), 1 / w)
        size = n("Mul", n("Exp", size), n.near(1, 1, 3, 1, 1, 2))
        found.append(n.shape(n.cat(place, size, n("Sigmoid", rest), axis=-1), b, -1, 7))
    return found


@network
def yolo_v8(n: Net) -> list[Value]:
    """Splits and bottlenecks (C2f), poolings in a row (SPPF), distances as softmax of bins."""
    x = n.conv(n.conv(n.input(1, 3, 33, 33), 12, 3, 2, act="Silu"), 20, 3, 2, act="Silu")
    parts = n.split(n.conv(x, 20, 1, act="Silu"), 10, 10)
    for _ in range(2):
        y = n.conv(n.conv(parts[-1], 10, act="Silu"), 10, act="Silu", gain=0.5)
        parts.append(n("Add", parts[-1], y))
    x = n.conv(n.cat(*parts), 20, 1, act="Silu")
    pooled = [n.conv(x, 9, 1, act="Silu")]
    for _ in range(3):
        pooled.append(n.pool(pooled[-1], 5, 1, 2))
    x = n.conv(n.cat(*pooled), 20, 1, act="Silu")
    bins = n.shape(n.conv(x, 4 * 8, 1, norm=False, act=""), 1, 4, 8, 81)
    bins = n("Softmax", n.order(bins, 0, 2, 1, 3), axis=1)
    steps = n.const([[[[float(k)]] for k in range(8)]])
    distances = n("ReduceSum", n("Mul", bins, steps), [1], keepdims=0)
    return [distances, n("Sigmoid", n.conv(x, 5, 1, norm=False, act=""))]


@network
def fcos(n: Net) -> list[Value]:
    """Tian et al. 2019: no anchors; distances by exponentials, group normalization."""
    found = []
    for x in _pyramid(n, _levels(n))[:2]:
        y = n.conv(x, 16, norm=False, act="")
        y = n("Relu", n.group_norm(y, 4))
        distances = n("Exp", n("Mul", n.conv(y, 4, norm=False, act=""), 0.3))
        found += [distances, n.conv(y, 5, norm=False, act="Sigmoid")]
    return found


@network
def centernet(n: Net) -> list[Value]:
    """Zhou et al. 2019: centers are places that a pooling of 3x3 leaves as they are; the best."""
    x = n.conv(n.input(1, 3, 27, 27), 14, 3, 2)
    heat = n("Sigmoid", n.conv(n.conv(x, 14), 3, 1, norm=False, act=""))
    peaks = n("Cast", n("Equal", heat, n.pool(heat, 3, 1, 1)), to=1)
    flat = n.shape(n("Mul", heat, peaks), 1, -1)
    scores, places = n.many("TopK", 2, flat, [7], axis=-1)
    sizes = n.shape(n.conv(x, 2, 1, norm=False, act=""), 2, -1)
    at = n("Mod", places, n.const([14 * 14]))
    return [scores, n("Gather", sizes, n.shape(at, -1), axis=1)]


@network
def faster_rcnn_head(n: Net) -> Value:
    """Ren et al. 2015: regions of a map, each brought to one size, then two linear layers."""
    x = _levels(n)[0]
    boxes = n.const(n.rng.uniform(0, 4, (6, 2)).astype("f"))
    boxes = n.cat(boxes, n("Add", boxes, n.const(n.rng.uniform(3, 6, (6, 2)).astype("f"))))
    which = n.const(n.rng.integers(0, 1, 6))
    y = n("RoiAlign", x, boxes, which, output_height=5, output_width=5, sampling_ratio=2)
    return n.gemm(n.gemm(n("Flatten", y), 40, "Relu"), 9)
