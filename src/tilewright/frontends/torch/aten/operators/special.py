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
from tilewright.graph.nodes import Value

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
_SHIFTS: Final = (
    10  # steps of the recurrence after which the series has float64's accuracy
)


class _Terms:
    """Arithmetic of float64 for one use of an operator."""

    def __init__(self, c: AtenCall) -> None:
        self.c = c

    def __call__(self, op_type: str, *operands: Value | float) -> Value:
        return self.c.op(op_type, *(self.value(x) for x in operands))

    def value(self, x: Value | float) -> Value:
        """An operand; numbers are constants."""
        return x if isinstance(x, Value) else self.c.number(x, float64)

    def polynomial(self, x: Value, parts: Sequence[float]) -> Value:
        """By Horner's rule, from the highest power on."""
        found = self.value(parts[0])
        for part in parts[1:]:
            found = self("Add", self("Mul", found, x), part)
        return found

    def ratio(self, x: Value, parts: tuple[Sequence[float], Sequence[float]]) -> Value:
        """A rational function."""
        above, below = (self.polynomial(x, p) for p in parts)
        return self("Div", above, below)

    def scaled_erfc(self, size: Value) -> Value:
        """`exp(x*x) * erfc(x)` for x >= 1."""
        far = self("Div", 1.0, size)  # in powers of 1/x, which do not overflow
        above, below = (self.polynomial(far, p[::-1]) for p in _FAR)
        tail = self("Mul", far, self("Div", above, below))
        near = self.ratio(self("Min", size, 8.0), _MIDDLE)
        return self("Where", self("Less", size, 8.0), near, tail)

    def erfc(self, x: Value) -> Value:
        """The complement of the error function, accurate where it is small."""
        size = self("Max", self("Abs", x), 1.0)
        small = self(
            "Mul",
            self("Exp", self("Neg", self("Mul", size, size))),
            self.scaled_erfc(size),
        )
        far = self("Where", self("Less", x, 0.0), self("Sub", 2.0, small), small)
        inside = self("Less", self("Abs", x), 1.0)
        return self("Where", inside, self("Sub", 1.0, self("Erf", x)), far)

    def erfcx(self, x: Value) -> Value:
        """`exp(x*x) * erfc(x)`."""
        square = self("Exp", self("Mul", x, x))
        near = self("Mul", square, self.erfc(self("Min", x, 1.0)))
        far = self.scaled_erfc(self("Max", x, 1.0))
        return self("Where", self("Less", x, 1.0), near, far)

    def quantile(self, q: Value, tail: Value) -> Value:
        """Of the normal distribution at 1/2 + q; tail: the distance from the nearer end."""
        center = self(
            "Mul", q, self.ratio(self("Sub", 0.180625, self("Mul", q, q)), _CENTER)
        )
        r = self("Sqrt", self("Neg", self("Log", tail)))
        near = self.ratio(self("Sub", r, 1.6), _NEAR_TAIL)
        far = self.ratio(self("Sub", self("Min", r, 40.0), 5.0), _FAR_TAIL)
        size = self("Where", self("LessOrEqual", r, 5.0), near, far)
        size = self("Where", self("Equal", tail, 0.0), math.inf, size)
        signed = self("Where", self("Less", q, 0.0), self("Neg", size), size)
        inside = self("LessOrEqual", self("Abs", q), 0.425)
        return self("Where", inside, center, signed)

    def lgamma(self, x: Value) -> Value:
        """The logarithm of the size of the gamma function."""
        reflected = self("Less", x, 0.5)
        z = self("Sub", self("Where", reflected, self("Sub", 1.0, x), x), 1.0)
        total = self.value(_LANCZOS[0])
        for n, part in enumerate(_LANCZOS[1:], 1):
            total = self("Add", total, self("Div", part, self("Add", z, float(n))))
        t = self("Add", z, 7.5)
        # (z + 1/2) (log t - 1) - 7: infinity minus infinity does not occur.
        far = self("Mul", self("Add", z, 0.5), self("Sub", self("Log", t), 1.0))
        far = self("Sub", self("Add", far, 0.5 * math.log(2 * math.pi)), 7.0)
        found = self("Add", far, self("Log", total))
        sine = self("Abs", self("Sin", self("Mul", self.fraction(x), math.pi)))
        low = self("Sub", self("Sub", math.log(math.pi), self("Log", sine)), found)
        found = self("Where", reflected, low, found)
        return self("Where", self("IsInf", x), math.inf, found)

    def digamma(self, x: Value) -> Value:
        """The derivative of `lgamma`: infinite at zero, by its sign, and NaN at other poles."""
        reflected = self("Less", x, 0.0)
        z = self("Where", reflected, self("Sub", 1.0, x), x)
        total = self.value(0.0)
        for _ in range(_SHIFTS):
            near = self("Less", z, float(_SHIFTS))
            total = self("Where", near, self("Sub", total, self("Div", 1.0, z)), total)
            z = self("Where", near, self("Add", z, 1.0), z)
        inverse = self("Div", 1.0, self("Mul", z, z))
        series = self("Mul", inverse, self.polynomial(inverse, _BERNOULLI[::-1]))
        rest = self("Add", self("Sub", self("Log", z), self("Div", 0.5, z)), series)
        found = self("Add", total, rest)
        fraction = self.fraction(x)
        cotangent = self("Div", math.pi, self("Tan", self("Mul", fraction, math.pi)))
        found = self("Where", reflected, self("Sub", found, cotangent), found)
        pole = self("And", self("Equal", fraction, 0.0), reflected)
        found = self("Where", pole, math.nan, found)
        at_zero = self("Neg", self("Reciprocal", x))
        return self("Where", self("Equal", x, 0.0), at_zero, found)

    def fraction(self, x: Value) -> Value:
        """The distance from the nearest integer, with its sign."""
        return self("Sub", x, self("Round", x))


def _function(apply: Callable[[_Terms, Value], Value]) -> Callable[[AtenCall], Value]:
    def found(c: AtenCall) -> Value:
        x = c.cast(c.tensor(dtype=c.dtype), float64)
        return c.cast(apply(_Terms(c), x), c.dtype)

    return found


rule("aten.erfc", "aten.special_erfc")(_function(_Terms.erfc))
rule("aten.special_erfcx")(_function(_Terms.erfcx))
rule("aten.lgamma", "aten.special_gammaln")(_function(_Terms.lgamma))
rule("aten.digamma", "aten.special_digamma")(_function(_Terms.digamma))


@rule("aten.erfinv", "aten.special_erfinv")
@_function
def _erfinv(t: _Terms, x: Value) -> Value:
    tail = t("Mul", t("Sub", 1.0, t("Abs", x)), 0.5)
    found = t.quantile(t("Mul", x, 0.5), tail)
    return t("Mul", found, math.sqrt(0.5))


@rule("aten.special_ndtri")
@_function
def _ndtri(t: _Terms, x: Value) -> Value:
    return t.quantile(t("Sub", x, 0.5), t("Min", x, t("Sub", 1.0, x)))


@rule("aten.special_log_ndtr")
@_function
def _log_ndtr(t: _Terms, x: Value) -> Value:
    """The logarithm of the normal distribution, accurate in both tails."""
    scaled = t("Mul", x, math.sqrt(0.5))
    low = t("Log", t("Mul", 0.5, t.erfcx(t("Neg", t("Min", scaled, 0.0)))))
    low = t("Sub", low, t("Mul", scaled, scaled))
    high = t.erfc(scaled)
    high = t("Mul", high, -0.5)
    u = t("Add", high, 1.0)
    # log1p, by Kahan's correction.
    away = t("Div", t("Mul", t("Log", u), high), t("Sub", u, 1.0))
    high = t("Where", t("Equal", u, 1.0), high, away)
    return t("Where", t("Less", x, -1.0), low, high)
