"""Networks that substitutions were published for, in their real sizes, with random weights.

Each is a tilewright Graph of standard operators (batch 1) and a set of inputs. Weights are normal
with variance gain / fan-in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from tilewright.testing.graphs import Case
from tilewright.testing.networks.builder import Net, NetTensor

# Ioffe and Szegedy 2015, figure 5: 1x1; 1x1 and 3x3; 1x1, 3x3 and 3x3; pooling and 1x1.
_INCEPTION: Final = (
    (64, 64, 64, 64, 96, "average", 32, 1),
    (64, 64, 96, 64, 96, "average", 64, 1),
    (0, 128, 160, 64, 96, "max", 0, 2),
    (224, 64, 96, 96, 128, "average", 128, 1),
    (192, 96, 128, 96, 128, "average", 128, 1),
    (160, 128, 160, 128, 160, "average", 96, 1),
    (96, 128, 192, 160, 192, "average", 96, 1),
    (0, 128, 192, 192, 256, "max", 0, 2),
    (352, 192, 320, 160, 224, "average", 128, 1),
    (352, 192, 320, 192, 224, "max", 128, 1),
)


def _inception_block(n: Net, x: NetTensor, row: tuple[Any, ...]) -> NetTensor:
    one, narrow, three, less, twice, kind, pooled, stride = row
    parts = [x.conv(one, 1)] if one else []
    parts.append(x.conv(narrow, 1).conv(three, 3, stride))
    parts.append(x.conv(less, 1).conv(twice, 3).conv(twice, 3, stride))
    if stride == 2:
        parts.append(x.max_pool(3, 2, 1))
    else:
        pool = x.max_pool if kind == "max" else x.average_pool
        parts.append(pool(3, 1, 1).conv(pooled, 1))
    return n.cat(*parts)


def inception_v2(n: Net) -> NetTensor:
    """Ioffe and Szegedy 2015, of which MetaFlow's Inception block is one."""
    x = n.input(1, 3, 224, 224)
    x = x.conv(64, 7, 2).max_pool(3, 2, 1)
    x = x.conv(64, 1).conv(192, 3).max_pool(3, 2, 1)
    for row in _INCEPTION:
        x = _inception_block(n, x, row)
    return x.head(1000)


def squeezenet(n: Net) -> NetTensor:
    """Iandola et al. 2016, version 1.0 with complex bypasses."""
    x = n.input(1, 3, 224, 224).conv_bias(96, 7, 2).max_pool(3, 2)
    rows = (
        (16, 64),
        (16, 64),
        (32, 128),
        (32, 128),
        (48, 192),
        (48, 192),
        (64, 256),
        (64, 256),
    )
    for place, (squeeze, expand) in enumerate(rows):
        y = x.conv_bias(squeeze, 1)
        y = n.cat(y.conv_bias(expand, 1), y.conv_bias(expand, 3))
        same = x.shape[1] == 2 * expand
        x = y + (x if same else x.project(2 * expand, 1))
        if place in (2, 6):
            x = x.max_pool(3, 2)
    return x.conv_bias(1000, 1).GlobalAveragePool()


def resnext50(n: Net) -> NetTensor:
    """Xie et al. 2017: 32 groups of 4 channels."""
    x = n.input(1, 3, 224, 224).conv(64, 7, 2).max_pool(3, 2, 1)
    for width, depth, stride in ((128, 3, 1), (256, 4, 2), (512, 6, 2), (1024, 3, 2)):
        for block in range(depth):
            step = stride if block == 0 else 1
            y = x.conv(width, 1).conv(width, 3, step, groups=32)
            y = y.conv(2 * width, 1, act="")
            x = (y + (x if block else x.conv(2 * width, 1, step, act=""))).Relu()
    return x.head(1000)


def nasnet_cell(n: Net) -> NetTensor:
    """Two normal cells of NASNet-A (Zoph et al. 2018) at 28x28 with 44 channels."""
    before = x = n.input(1, 264, 28, 28)
    for _ in range(2):
        a, b = x.Relu().conv(44, 1, act=""), before.Relu().conv(44, 1, act="")

        def separable(t: NetTensor, size: int) -> NetTensor:
            for _ in range(2):
                t = t.Relu().depthwise(size, act="").conv(44, 1, act="")
            return t

        parts = (
            separable(a, 3) + a,
            separable(b, 3) + separable(a, 5),
            a.average_pool(3, 1, 1) + b,
            b.average_pool(3, 1, 1) + b.average_pool(3, 1, 1),
            separable(b, 5) + separable(b, 3),
        )
        before, x = x, n.cat(b, *parts)
    return x.Relu().head(1000)


def sru_stack(n: Net) -> NetTensor:
    """MetaFlow's recurrent network: a simple recurrent unit (Lei et al. 2018), 20 steps of 512."""
    width = 512
    w, wf, wr = (n.weight(width, width, fan=width) for _ in range(3))
    state = n.input(1, width)
    outputs = []
    for _ in range(20):
        x = n.input(1, width)
        f = (x @ wf).Sigmoid()
        r = (x @ wr).Sigmoid()
        value = x @ w
        state = f * state + (1.0 - f) * value
        outputs.append(r * state.Tanh() + (1.0 - r) * x)
    return n.cat(*outputs, axis=0)


def bert_layers(n: Net, layers: int = 4) -> NetTensor:
    """Encoder layers of BERT-base (Devlin et al. 2018), 128 tokens, plain products."""
    width, heads, length = 768, 12, 128
    x = n.input(1, length, width)

    def many(t: NetTensor) -> NetTensor:
        return t.reshape(1, length, heads, width // heads).transpose(0, 2, 1, 3)

    for _ in range(layers):
        q, k, v = (many(x.linear(width)) for _ in range(3))
        weights = ((q @ k.mT) * (width // heads) ** -0.5).Softmax(axis=-1)
        mixed = (weights @ v).transpose(0, 2, 1, 3).reshape(1, length, width)
        x = (x + mixed.linear(width)).layer_norm()
        x = (x + x.linear(4 * width, act="Gelu").linear(width)).layer_norm()
    return x


def experts(n: Net) -> NetTensor:
    """A layer of eight experts, which all run, weighted by a gate (Jacobs et al. 1991)."""
    x = n.input(32, 512)
    gate = x.linear(8).Softmax(axis=-1)
    parts = gate.split(*[1] * 8, axis=1)
    made = [x.linear(512, act="Relu").linear(512) * part for part in parts]
    return n.add(*made) + x


def unet(n: Net) -> NetTensor:
    """Ronneberger et al. 2015 at 128x128 with 32 channels; transposed convolutions go up."""
    x = n.input(1, 3, 128, 128)
    kept = []
    for width in (32, 64, 128):
        x = x.conv(width).conv(width)
        kept.append(x)
        x = x.max_pool(2, 2)
    x = x.conv(256).conv(256)
    for width, skip in zip((128, 64, 32), reversed(kept)):
        w = n.weight(2 * width, width, 2, 2, fan=2 * width)
        x = n("ConvTranspose", x, w, strides=[2, 2])
        x = n.cat(x, skip).conv(width).conv(width)
    return x.project(4, 1)


def inception_block(n: Net) -> NetTensor:
    """MetaFlow's first example: convolutions of one image with windows of 1 and 3."""
    x = n.input(1, 192, 28, 28)
    deep = x.conv_bias(64, 1).conv_bias(96, 3)
    return n.cat(x.conv_bias(64, 1), x.conv_bias(96, 3), deep)


def recurrent_cell(n: Net) -> NetTensor:
    """MetaFlow's second example: one step of a recurrent network of 1024."""
    width = 1024
    x, state = n.input(1, width), n.input(1, width)
    f, r, value = (x @ n.weight(width, width, fan=width) for _ in range(3))
    forget, reset = f.Sigmoid(), r.Sigmoid()
    state = forget * state + forget * value
    return n.cat(state, reset * state.Tanh() + reset * x)


def case(name: str) -> Case:
    """A network and its inputs, the same each time."""
    net = Net(name)
    return net.case([NETS[name](net)])


NETS: Final[Mapping[str, Callable[[Net], NetTensor]]] = {
    made.__name__: made
    for made in (
        inception_v2,
        squeezenet,
        resnext50,
        nasnet_cell,
        sru_stack,
        bert_layers,
        experts,
        unet,
        inception_block,
        recurrent_cell,
    )
}
