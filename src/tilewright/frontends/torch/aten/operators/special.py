"""Special functions: errors of the normal distribution, and the gamma function's logarithms.

They are computed in float64 and rounded once, by rational approximations: erfc after Cephes
(Moshier), the quantiles after Wichura (Algorithm AS 241), lgamma after Lanczos, and digamma by its
recurrence and asymptotic series.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from tilewright.base.dtypes import float64
from tilewright.frontends.torch.aten.rules import AtenCall, rule
from tilewright.frontends.torch.aten.terms import argument
from tilewright.graph.nodes import Value
from tilewright.graph.ops.terms import TensorTerm

# erfcx(x) for 1 <= x < 8 and for x >= 8: numerators and denominators, highest power first.
_MIDDLE: Final = (
    (
        2.46196981473530512524e-10,
        5.64189564831068821977e-1,
        7.46321056442269912687,
        4.86371970985681366614e1,
        1.96520832956077098242e2,
        5.26445194995477358631e2,
        9.34528527171957607540e2,
        1.02755188689515710272e3,
        5.57535335369399327526e2,
    ),
    (
        1.0,
        1.32281951154744992508e1,
        8.67072140885989742329e1,
        3.54937778887819891062e2,
        9.75708501743205489753e2,
        1.82390916687909736289e3,
        2.24633760818710981792e3,
        1.65666309194161350182e3,
        5.57535340817727675546e2,
    ),
)
_FAR: Final = (
    (
        5.64189583547755073984e-1,
        1.27536670759978104416,
        5.01905042251180477414,
        6.16021097993053585195,
        7.40974269950448939160,
        2.97886665372100240670,
    ),
    (
        1.0,
        2.26052863220117276590,
        9.39603524938001434673,
        1.20489539808096656605e1,
        1.70814450747565897222e1,
        9.60896809063285878198,
        3.36907645100081516050,
    ),
)
# Quantiles of the normal distribution: the center, and the tails in sqrt(-log(p)).
_CENTER: Final = (
    (
        2.5090809287301226727e3,
        3.3430575583588128105e4,
        6.7265770927008700853e4,
        4.5921953931549871457e4,
        1.3731693765509461125e4,
        1.9715909503065514427e3,
        1.3314166789178437745e2,
        3.3871328727963666080,
    ),
    (
        5.2264952788528545610e3,
        2.8729085735721942674e4,
        3.9307895800092710610e4,
        2.1213794301586595867e4,
        5.3941960214247511077e3,
        6.8718700749205790830e2,
        4.2313330701600911252e1,
        1.0,
    ),
)
_NEAR_TAIL: Final = (
    (
        7.74545014278341407640e-4,
        2.27238449892691845833e-2,
        2.41780725177450611770e-1,
        1.27045825245236838258,
        3.64784832476320460504,
        5.76949722146069140550,
        4.63033784615654529590,
        1.42343711074968357734,
    ),
    (
        1.05075007164441684324e-9,
        5.47593808499534494600e-4,
        1.51986665636164571966e-2,
        1.48103976427480074590e-1,
        6.89767334985100004550e-1,
        1.67638483018380384940,
        2.05319162663775882187,
        1.0,
    ),
)
_FAR_TAIL: Final = (
    (
        2.01033439929228813265e-7,
        2.71155556874348757815e-5,
        1.24266094738807843860e-3,
        2.65321895265761230930e-2,
        2.96560571828504891230e-1,
        1.78482653991729133580,
        5.46378491116411436990,
        6.65790464350110377720,
    ),
    (
        2.04426310338993978564e-15,
        1.42151175831644588870e-7,
        1.84631831751005468180e-5,
        7.86869131145613259100e-4,
        1.48753612908506148525e-2,
        1.36929880922735805310e-1,
        5.99832206555887937690e-1,
        1.0,
    ),
)
# Lanczos' coefficients for g = 7.
_LANCZOS: Final = (
    0.99999999999980993,
    676.5203681218851,
    -1259.1392167224028,
    771.32342877765313,
    -176.61502916214059,
    12.507343278686905,
    -0.13857109526572012,
    9.9843695780195716e-6,
    1.5056327351493116e-7,
)
# Coefficients of x**-2n in x - log(x) + 1/(2x) of digamma: Bernoulli numbers over 2n.
_BERNOULLI: Final = (
    -1 / 12,
    1 / 120,
    -1 / 252,
    1 / 240,
    -1 / 132,
    691 / 32760,
    -1 / 12,
)
# Steps of the recurrence after which the series has float64's accuracy.
_SHIFTS: Final = 10


Rational = tuple[Sequence[float], Sequence[float]]


def _polynomial(x: TensorTerm, parts: Sequence[float]) -> TensorTerm:
    """By Horner's rule, from the highest power on."""
    found = x.of(parts[0])
    for part in parts[1:]:
        found = found * x + part
    return found


def _ratio(x: TensorTerm, parts: Rational) -> TensorTerm:
    above, below = parts
    return _polynomial(x, above) / _polynomial(x, below)


def _fraction(x: TensorTerm) -> TensorTerm:
    """The distance from the nearest integer, with its sign."""
    return x - x.op("Round")


def _scaled_erfc(size: TensorTerm) -> TensorTerm:
    """`exp(x*x) * erfc(x)` for x >= 1."""
    above, below = _FAR
    far = 1 / size  # its powers do not overflow
    tail = far * _ratio(far, (above[::-1], below[::-1]))
    near = _ratio(size.op("Min", 8), _MIDDLE)
    return (size < 8).chosen(near, tail)


def _erfc(x: TensorTerm) -> TensorTerm:
    """The complement of the error function, accurate where it is small."""
    size = abs(x)
    large = size.op("Max", 1)
    square = large * large
    small = (-square).op("Exp") * _scaled_erfc(large)
    far = (x < 0).chosen(2 - small, small)
    near = 1 - x.op("Erf")
    return (size < 1).chosen(near, far)


def _erfcx(x: TensorTerm) -> TensorTerm:
    """`exp(x*x) * erfc(x)`."""
    square = x * x
    low = x.op("Min", 1)
    high = x.op("Max", 1)
    near = square.op("Exp") * _erfc(low)
    return (x < 1).chosen(near, _scaled_erfc(high))


def _quantile(q: TensorTerm, tail: TensorTerm) -> TensorTerm:
    """Of the normal distribution at 1/2 + q; tail: the distance from the nearer end."""
    center = q * _ratio(0.180625 - q * q, _CENTER)
    logarithm = tail.op("Log")
    r = (-logarithm).op("Sqrt")
    near = _ratio(r - 1.6, _NEAR_TAIL)
    far = _ratio(r.op("Min", 40) - 5, _FAR_TAIL)
    size = (r < 5).chosen(near, far)
    size = tail.equals(0).chosen(math.inf, size)
    signed = (q < 0).chosen(-size, size)
    middle = abs(q) < 0.425
    return middle.chosen(center, signed)


def _lgamma(x: TensorTerm) -> TensorTerm:
    """The logarithm of the size of the gamma function."""
    reflected = x < 0.5
    z = reflected.chosen(1 - x, x) - 1
    total = x.of(_LANCZOS[0])
    for n, part in enumerate(_LANCZOS[1:], 1):
        total = total + part / (z + n)
    t = z + 7.5
    # Infinity minus infinity does not occur.
    far = (z + 0.5) * (t.op("Log") - 1)
    far = far + 0.5 * math.log(2 * math.pi) - 7
    high = far + total.op("Log")
    turn = _fraction(x) * math.pi
    sine = abs(turn.op("Sin"))
    low = math.log(math.pi) - sine.op("Log") - high
    found = reflected.chosen(low, high)
    return x.op("IsInf").chosen(math.inf, found)


def _digamma(x: TensorTerm) -> TensorTerm:
    """The derivative of `lgamma`: infinite at zero, by its sign, and NaN at other poles."""
    reflected = x < 0
    z = reflected.chosen(1 - x, x)
    total = x.of(0)
    for _ in range(_SHIFTS):
        near = z < _SHIFTS
        total = near.chosen(total - 1 / z, total)
        z = near.chosen(z + 1, z)
    inverse = 1 / (z * z)
    series = inverse * _polynomial(inverse, _BERNOULLI[::-1])
    high = total + z.op("Log") - 0.5 / z + series
    fraction = _fraction(x)
    turn = fraction * math.pi
    low = high - math.pi / turn.op("Tan")
    low = fraction.equals(0).chosen(math.nan, low)
    found = reflected.chosen(low, high)
    at_zero = -(1 / x)
    return x.equals(0).chosen(at_zero, found)


def _erfinv(x: TensorTerm) -> TensorTerm:
    tail = 0.5 * (1 - abs(x))
    found = _quantile(0.5 * x, tail)
    return found * math.sqrt(0.5)


def _ndtri(x: TensorTerm) -> TensorTerm:
    tail = x.op("Min", 1 - x)
    return _quantile(x - 0.5, tail)


def log_of_more(share: TensorTerm) -> TensorTerm:
    """The logarithm of 1 + share, by Kahan's correction."""
    u = share + 1
    found = u.op("Log") * share / (u - 1)
    return u.equals(1).chosen(share, found)


def _log_ndtr(x: TensorTerm) -> TensorTerm:
    """The logarithm of the normal distribution, accurate in both tails."""
    scaled = x * math.sqrt(0.5)
    below = scaled.op("Min", 0)
    half = 0.5 * _erfcx(-below)
    low = half.op("Log") - scaled * scaled
    high = log_of_more(-0.5 * _erfc(scaled))
    return (x < -1).chosen(low, high)


def rule_of_function(
    function: Callable[[TensorTerm], TensorTerm],
) -> Callable[[AtenCall], Value]:
    """The rule of a function of one number, which is computed in float64."""

    def apply(c: AtenCall) -> Value:
        name = "x" if c.has("x") else "self"
        wide = argument(c, name).cast(float64)
        found = function(wide)
        return found.cast(c.dtype).value

    return apply


_FUNCTIONS: Final = {
    "erfc": _erfc,
    "special_erfc": _erfc,
    "special_erfcx": _erfcx,
    "erfinv": _erfinv,
    "special_erfinv": _erfinv,
    "special_ndtri": _ndtri,
    "special_log_ndtr": _log_ndtr,
    "lgamma": _lgamma,
    "special_gammaln": _lgamma,
    "digamma": _digamma,
    "special_digamma": _digamma,
}
for _name, _apply in _FUNCTIONS.items():
    rule(f"aten.{_name}")(rule_of_function(_apply))
