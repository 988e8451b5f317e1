"""Bessel functions by Chebyshev series, computed in float64 and rounded once.

Below 8 the series are in x or its square. From 8 on they are in 8 / x or its square: of what is
left of `exp(x) / sqrt(x)`, and of the factors of cosine and sine in the asymptotic form (Abramowitz
and Stegun, "Handbook of Mathematical Functions", sections 9.2 and 9.7).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from tilewright.frontends.torch.aten.operators.special import rule_of_function
from tilewright.frontends.torch.aten.rules import rule
from tilewright.graph.ops.terms import TensorTerm

# Coefficients, the constant one first, by order and range; `NEAR` is below 8.
_I0_NEAR: Final = (
    0.33839763720473803,
    -0.3046826723431984,
    0.17162090152220877,
    -0.09490109704804764,
    0.04930528423967071,
    -0.02373741480589947,
    0.010546460394594998,
    -0.004324309995050576,
    0.0016394756169413357,
    -0.0005763755745385824,
    0.00018850288509584165,
    -5.754195010082104e-05,
    1.6448448070728896e-05,
    -4.4167383584587505e-06,
    1.1173875391201037e-06,
    -2.670793853940612e-07,
    6.046995022541919e-08,
    -1.300025009986248e-08,
    2.6598237246823866e-09,
    -5.189795601635263e-10,
    9.675809035373237e-11,
    -1.726826291441556e-11,
    2.95505266312964e-12,
    -4.856446783111929e-13,
    7.676185498604936e-14,
    -1.1685332877993451e-14,
    1.715391285555133e-15,
    -2.431279846547955e-16,
    3.3307945188222384e-17,
    -4.4153416464793395e-18,
)
_I0_FAR: Final = (
    0.4022452055070544,
    0.0033691164782556943,
    6.889758346916825e-05,
    2.8913705208347567e-06,
    2.0489185894690638e-07,
    2.266668990498178e-08,
    3.3962320257083865e-09,
    4.94060238822497e-10,
    1.1889147107846439e-11,
    -3.1499165279632416e-11,
    -1.3215811840447713e-11,
    -1.7941785315068062e-12,
    7.180124451383666e-13,
    3.8527783827421426e-13,
    1.54008621752141e-14,
    -4.150569347287222e-14,
    -9.554846698828307e-15,
    3.8116806693526224e-15,
    1.7725601330565263e-15,
    -3.425485619677219e-16,
    -2.8276239805165836e-16,
    3.461222867697461e-17,
    4.46562142029676e-17,
    -4.830504485944178e-18,
    -7.23318048787476e-18,
)
_I1_NEAR: Final = (
    0.12629359322181682,
    -0.17641651835783406,
    0.1026436586898471,
    -0.05294598120809499,
    0.024726449030626516,
    -0.010564084894626197,
    0.004156422944312888,
    -0.0015135724506312532,
    0.0005122859561685758,
    -0.00016176081582589674,
    4.781565107550054e-05,
    -1.3273163656039436e-05,
    3.4702513081376785e-06,
    -8.568720264695455e-07,
    2.0032947535521353e-07,
    -4.445059128796328e-08,
    9.381537386495773e-09,
    -1.8872497517228294e-09,
    3.625590281552117e-10,
    -6.663489723502027e-11,
    1.1736186298890901e-11,
    -1.9839743977649436e-12,
    3.223793365945575e-13,
    -5.042185504727912e-14,
    7.600684294735408e-15,
    -1.1055969477353862e-15,
    1.5536319577362005e-16,
    -2.111421214358166e-17,
    2.7779141127610464e-18,
)
_I1_FAR: Final = (
    0.38928811750914005,
    -0.009761097491361469,
    -0.00011058893876262371,
    -3.882564808877691e-06,
    -2.512236237870209e-07,
    -2.6314688468895196e-08,
    -3.835380385964237e-09,
    -5.589743462196584e-10,
    -1.8974958123505413e-11,
    3.2526035830154884e-11,
    1.4125807436613782e-11,
    2.0356285441470896e-12,
    -7.198551776245908e-13,
    -4.0835511110921974e-13,
    -2.1015418427726643e-14,
    4.272440016711951e-14,
    1.0420276984128802e-14,
    -3.8144030724370075e-15,
    -1.8803547755107825e-15,
    3.3082023109209285e-16,
    2.96262899764595e-16,
    -3.209525921993424e-17,
    -4.650305368489358e-17,
    4.414348323071704e-18,
    7.517296310842111e-18,
)
_J0_NEAR: Final = (
    0.15772797147489012,
    -0.008723442352852221,
    0.2651786132033368,
    -0.37009499387264977,
    0.15806710233209725,
    -0.034893769411408884,
    0.004819180069467605,
    -0.00046062616620627504,
    3.246032882100508e-05,
    -1.7619469077621507e-06,
    7.608163592418782e-08,
    -2.679253530557673e-09,
    7.848696314479465e-11,
    -1.9438346867370164e-12,
    4.125320595634374e-14,
    -7.588508125447546e-16,
    1.2218515873961411e-17,
)
_J1_NEAR: Final = (
    0.08104484632565812,
    -0.1489751450676521,
    0.1609992623572097,
    -0.08268049176681791,
    0.022213639654966037,
    -0.003646940600769276,
    0.0004050337728354822,
    -3.255554866857259e-05,
    1.9858774049915165e-06,
    -9.521984756750436e-08,
    3.687133759097148e-09,
    -1.178026622695885e-10,
    3.160154580348003e-12,
    -7.221755239651773e-14,
    1.4232144003513942e-15,
    -2.4441972916190464e-17,
)
_J0_COSINE: Final = (
    0.9994603493475187,
    -0.0005365220468132117,
    3.0751847875194745e-06,
    -5.1705945376060975e-08,
    1.6306464635151382e-09,
    -7.86409137723707e-11,
    5.168262387349193e-12,
    -4.3045788699253914e-13,
    4.3265957431549404e-14,
    -5.069034095935236e-15,
    6.748072215733873e-16,
    -1.0011513723467786e-16,
    1.6305919233744186e-17,
)
_J0_SINE: Final = (
    -0.12444683684269607,
    0.0005470815954089319,
    -5.9315987288485175e-06,
    1.4377965798375193e-07,
    -5.817532749493056e-09,
    3.376097523734991e-10,
    -2.565397936797308e-11,
    2.404916100281365e-12,
    -2.6690625482579414e-13,
    3.4041800321963686e-14,
    -4.87994410531204e-15,
    7.729703176242605e-16,
    -1.3348852171502517e-16,
    2.4865952389390515e-17,
    -4.952892629886516e-18,
)
_J1_COSINE: Final = (
    1.0009030408600137,
    0.0008989898330859408,
    -3.987284300488908e-06,
    6.177633960644299e-08,
    -1.8718907491063067e-09,
    8.816898659582339e-11,
    -5.704863640395645e-12,
    4.699195515230542e-13,
    -4.6842237839904895e-14,
    5.452674896044717e-15,
    -7.221180842274018e-16,
    1.0667689114335412e-16,
    -1.7312313216116335e-17,
)
_J1_SINE: Final = (
    0.3742222965562826,
    -0.0007702178839325664,
    7.3108922063643636e-06,
    -1.676782510726674e-07,
    6.583354662120443e-09,
    -3.749090950541556e-10,
    2.8121750359748866e-11,
    -2.61145253946232e-12,
    2.8774212663332235e-13,
    -3.649001916061838e-14,
    5.206626366226707e-15,
    -8.215318025458595e-16,
    1.4141084390211833e-16,
    -2.626761589838529e-17,
    5.2192649196714085e-18,
)

BORDER: Final = 8


def chebyshev(x: TensorTerm, parts: Sequence[float]) -> TensorTerm:
    """A sum of Chebyshev polynomials for x from -1 to 1, by Clenshaw's recurrence."""
    twice = 2 * x
    later = x.of(0)
    found = x.of(parts[-1])
    for part in parts[-2:0:-1]:
        later, found = found, twice * found - later + part
    return x * found - later + parts[0]


def _scaled(
    x: TensorTerm, near: Sequence[float], far: Sequence[float], odd: bool = False
) -> TensorTerm:
    """A modified Bessel function of the first kind times exp(-|x|)."""
    size = abs(x)
    low = chebyshev(size.op("Min", BORDER) / 4 - 1, near)
    if odd:
        low = low * size
    large = size.op("Max", BORDER)
    high = chebyshev(16 / large - 1, far) / large.op("Sqrt")
    found = (size < BORDER).chosen(low, high)
    if odd:
        found = (x < 0).chosen(-found, found)
    return x.op("IsNaN").chosen(x, found)


def _i0e(x: TensorTerm) -> TensorTerm:
    return _scaled(x, _I0_NEAR, _I0_FAR)


def _i1e(x: TensorTerm) -> TensorTerm:
    return _scaled(x, _I1_NEAR, _I1_FAR, odd=True)


def _grown(x: TensorTerm, scaled: TensorTerm) -> TensorTerm:
    """Times exp(|x|), by halves, which overflow later; NaN at infinity, as in PyTorch."""
    half = (abs(x) * 0.5).op("Exp")
    return scaled * half * half


def modified_i0(x: TensorTerm) -> TensorTerm:
    return _grown(x, _i0e(x))


def modified_i1(x: TensorTerm) -> TensorTerm:
    return _grown(x, _i1e(x))


# The angle and the factors of cosine and sine of the oscillating functions, by order.
_WAVES: Final = (
    (math.pi / 4, _J0_COSINE, _J0_SINE),
    (3 * math.pi / 4, _J1_COSINE, _J1_SINE),
)


def _factors(x: TensorTerm, order: int) -> tuple[TensorTerm, TensorTerm, TensorTerm]:
    """Of numbers from 8 on: the angle, and the factors of its cosine and sine."""
    angle, cosine, sine = _WAVES[order]
    large = x.op("Max", BORDER)
    inverse = BORDER / large
    place = 2 * inverse * inverse - 1
    root = (2 / math.pi / large).op("Sqrt")
    ahead = root * chebyshev(place, cosine)
    return large - angle, ahead, root * (chebyshev(place, sine) / large)


def far_cosine(x: TensorTerm, order: int) -> TensorTerm:
    """The first kind, of numbers from 8 on; NaN at infinity, as in PyTorch."""
    turn, ahead, beside = _factors(x, order)
    return ahead * turn.op("Cos") - beside * turn.op("Sin")


def far_sine(x: TensorTerm, order: int) -> TensorTerm:
    """The second kind, of numbers from 8 on; NaN at infinity, as in PyTorch."""
    turn, ahead, beside = _factors(x, order)
    return ahead * turn.op("Sin") + beside * turn.op("Cos")


def j0_below(small: TensorTerm) -> TensorTerm:
    """Of numbers from 0 to 8."""
    return chebyshev(small * small / 32 - 1, _J0_NEAR)


def j1_below(small: TensorTerm) -> TensorTerm:
    """Of numbers from 0 to 8."""
    return chebyshev(small * small / 32 - 1, _J1_NEAR) * small


def _j0(x: TensorTerm) -> TensorTerm:
    size = abs(x)
    low = j0_below(size.op("Min", BORDER))
    high = far_cosine(size, 0)
    return (size < BORDER).chosen(low, high)


def _j1(x: TensorTerm) -> TensorTerm:
    size = abs(x)
    low = j1_below(size.op("Min", BORDER))
    high = far_cosine(size, 1)
    found = (size < BORDER).chosen(low, high)
    return (x < 0).chosen(-found, found)


def _spherical_j0(x: TensorTerm) -> TensorTerm:
    """sin(x) / x, which is 1 at zero and 0 at infinity."""
    ratio = x.op("Sin") / x
    found = x.equals(0).chosen(1, ratio)
    return x.op("IsInf").chosen(0, found)


_FUNCTIONS: Final[dict[str, Callable[[TensorTerm], TensorTerm]]] = {
    "i0": modified_i0,
    "special_i0": modified_i0,
    "special_i0e": _i0e,
    "special_i1": modified_i1,
    "special_i1e": _i1e,
    "special_bessel_j0": _j0,
    "special_bessel_j1": _j1,
    "special_modified_bessel_i0": modified_i0,
    "special_modified_bessel_i1": modified_i1,
    "special_spherical_bessel_j0": _spherical_j0,
}
for _name, _apply in _FUNCTIONS.items():
    rule(f"aten.{_name}")(rule_of_function(_apply))
