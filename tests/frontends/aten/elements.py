"""Functions of elements."""

import torch

from tests.frontends.aten.tensors import b, i, x

F = torch.nn.functional
T = torch.tensor
SPECIAL = T(
    [0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 0.5, float("inf"), -float("inf"), float("nan")]
)
TINY = T([1e-8, -1e-8, 1e-5, 0.3, -0.3, 3.0, 0.0, float("inf")])
UNARY = (
    "abs acos acosh asin asinh atan atanh ceil cos cosh erf exp floor log neg reciprocal round "
    "sigmoid sign sin sinh sqrt tan tanh trunc rsqrt square log2 log10 exp2 log1p expm1 isnan "
    "isinf logical_not"
).split()
ACTIVATIONS = (
    "relu relu6 selu hardswish hardsigmoid silu leaky_relu celu elu softplus logsigmoid "
    "softsign hardtanh tanhshrink softshrink hardshrink"
).split()


CASES = {
    "hypotenuses": (
        torch.hypot,
        T([3.0, 0.0, -0.0, 3e30, 1e-30, torch.inf, torch.nan, -torch.inf, torch.nan]),
        T([-4.0, 0.0, 2.0, 4e30, 1e-30, 1.0, torch.inf, torch.inf, 1.0]),
    ),
    "unary": (lambda a: [getattr(torch, n)(a) for n in UNARY], SPECIAL),
    "activations": (lambda a: [getattr(F, n)(a) for n in ACTIVATIONS], SPECIAL),
    # At infinity PyTorch gives NaN for these two.
    "gelu and mish": (lambda a: (F.gelu(a), F.mish(a)), SPECIAL[:7] * 9),
    "tiny log1p": (torch.log1p, TINY),
    "gather by nothing": (lambda a: a.gather(0, torch.empty(2, 0).long()), x(5)),
    "groups of nothing": (lambda a: F.group_norm(a, 2), x(0, 4, 3)),
    "tiny expm1": (torch.expm1, TINY),
    "unary of integers": (
        lambda a: (a.abs(), a.sqrt(), a.floor(), -a, a.sign(), a.exp()),
        i(9),
    ),
    "gelu tanh": (lambda a: F.gelu(a, approximate="tanh"), x(9)),
    "elu scaled": (lambda a: torch.ops.aten.elu(a, 1.5, 2.0, 0.5), x(9)),
    "softplus beta": (lambda a: F.softplus(a, beta=3, threshold=1), x(9)),
    "threshold": (lambda a: F.threshold(a, 0.1, 20), SPECIAL),
    "prelu": (lambda a: F.prelu(a, T([0.1, 0.2, 0.3])), x(2, 3, 4)),
    "glu": (lambda a: F.glu(a, 1), x(2, 6, 3)),
    # arithmetic and promotion
    "add alpha": (lambda a, b: torch.add(a, b, alpha=3), x(3, 4), x(4)),
    "or alpha": (
        lambda a, b: [torch.add(a, b, alpha=alpha) for alpha in (False, True)],
        b(6),
        ~b(6),
    ),
    "sub alpha": (lambda a, b: torch.sub(a, b, alpha=2), x(3, 1), x(4)),
    "rsub": (lambda a: 2 - a, x(3)),
    "int plus float": (lambda a, b: (a + b, a * 2.5, a / 2, a + 1), i(4), x(4)),
    "bool arithmetic": (
        lambda a, b: (a + b, a * b, a & b, a | b, a ^ b, ~a, a + 1),
        b(6),
        ~b(6),
    ),
    "integer bits": (lambda a, b: (a & b, a | b, a ^ b, ~a), i(6), i(6, seed=1)),
    "float32 and float64": (lambda a, b: a + b, x(3), x(3).double()),
    "remainder": (lambda a, b: (a % b, torch.fmod(a, b)), x(20) * 5, x(20, seed=1)),
    "integer remainder": (
        lambda a, b: (a % b, torch.fmod(a, b)),
        i(20),
        i(20, seed=1) * 2 + 1,
    ),
    "floor divide": (
        lambda a, b: (a // b, torch.div(a, b, rounding_mode="trunc")),
        x(20) * 9,
        x(20, seed=1),
    ),
    "floor divide inexact": (lambda a: a // 0.1, T([1.0, -1.0, 0.3, 6.0])),
    "integer floor divide": (
        lambda a, b: (a // b, torch.div(a, b, rounding_mode="trunc"), a / b),
        i(20),
        i(20, seed=1) * 2 + 1,
    ),
    "pow": (lambda a: (a**2, a**3, 2**a, a.abs() ** 0.5), x(5)),
    "pow of integers": (lambda a: (a**2, (a + 1_000_003) ** 7, a**13, a**0), i(5)),
    "powers by tensors": (
        lambda a, b: (
            a**b,
            (a + 3) ** b,
            2 ** (a * 8),
            a.byte() ** b.byte(),
            300 ** a.char(),
        ),
        T([0, 1, 2, -1, 5, -3]),
        T([35, -2, 62, -5, 27, 41]),
    ),
    "atan2": (torch.atan2, T([1.0, -1, 1, -1, 0, 0, 2]), T([1.0, 1, -1, -1, 0, -1, 0])),
    "comparisons": (
        lambda a, b: (a < b, a <= b, a > b, a >= b, a == b, a != b, a > 0, a == 1),
        i(9),
        x(9).round(),
    ),
    "equal booleans": (lambda a, b: (a == b, a != b), b(6), ~b(6)),
    "logic": (
        lambda a, b: (
            torch.logical_and(a, b),
            torch.logical_or(a, b),
            torch.logical_xor(a, b),
        ),
        i(9),
        x(9).round(),
    ),
    "where": (
        lambda c, a, b: (
            torch.where(c, a, b),
            torch.where(c, a, 0.0),
            torch.where(c, 1, 0),
        ),
        b(3, 4),
        x(4),
        x(3, 1),
    ),
    "masked fill": (
        lambda a, m: (a.masked_fill(m, -1e9), a.masked_fill(~m, float("-inf"))),
        x(3, 4),
        b(3, 4),
    ),
    "clamp": (
        lambda a: (
            a.clamp(-1, 1),
            a.clamp(min=0),
            a.clamp(max=0),
            a.clamp(T(0.1), T(0.2)),
        ),
        SPECIAL,
    ),
    "clamp integers": (lambda a: a.clamp(-1, 2), i(9)),
    "maximum": (
        lambda a, b: (torch.maximum(a, b), torch.minimum(a, b), torch.max(a, b)),
        SPECIAL,
        SPECIAL.flip(0),
    ),
    "lerp": (lambda a, b: torch.lerp(a, b, 0.3), x(4), x(4, seed=1)),
    "addcmul": (
        lambda a, b, c: (torch.addcmul(a, b, c, value=2), torch.addcdiv(a, b, c)),
        x(4),
        x(4, seed=1),
        x(4, seed=2),
    ),
    "casts": (
        lambda a: (
            a.int(),
            a.double(),
            a.half(),
            a.bool(),
            a.to(torch.uint8),
            a.long(),
        ),
        x(9).abs() * 9,
    ),
    "in place": (lambda a: a.clone().add_(1).mul_(2).relu_(), x(5)),
    "in place on a part": (
        lambda a: (lambda y: (y[1:3].zero_(), y)[1])(a.clone()),
        x(5, 2),
    ),
    "row assigned": (
        lambda a: (lambda y: (y.__setitem__(2, 1.0), y)[1])(a.clone()),
        x(5, 2),
    ),
    # where a formula that is right elsewhere is not
    "atan2 in all quadrants": (torch.atan2, SPECIAL[:, None], SPECIAL),
    "floor divide special": (lambda a, b: a // b, SPECIAL[:, None], SPECIAL),
    "lerp to the end": (
        lambda a, b: (torch.lerp(a, b, 1.0), torch.lerp(a, b, 0.25)),
        T([1e8, 1.0, 3.0]),
        T([1.0, 1e8, 5.0]),
    ),
    "sign and order of booleans": (
        lambda a, b: (a.sign(), a < b, a >= b, a > 0, a <= 1.5),
        b(6),
        ~b(6),
    ),
    "bytes and numbers outside": (
        lambda a: (a + (-3), a * -1, a + 300, a > 3, a - 3),
        T([0, 5, 255], dtype=torch.uint8),
    ),
}
