"""Radio channels: the tapped delay lines A, B and C of 3GPP TR 38.901, table 7.7.2.

A tap fades as a sum of sinusoids (Clarke's isotropic scattering), antennas are correlated by the
Kronecker model, and the channel of a subcarrier is the Fourier transform of the taps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.base.errors import InputError

SPACING = 30e3  # Hz between subcarriers
SYMBOL = 0.5e-3 / 14  # seconds: a slot of 14 symbols
LIGHT = 299_792_458.0  # m/s

# Delays in units of the delay spread, and powers in dB.
PROFILES = {
    "A": (
        "0 .3819 .4025 .5868 .4610 .5375 .6708 .5750 .7618 1.5375 1.8978 2.2242 2.1718 2.4942 "
        "2.5119 3.0582 4.0810 4.4579 4.5695 4.7966 5.0066 5.3043 9.6586",
        "-13.4 0 -2.2 -4 -6 -8.2 -9.9 -10.5 -7.5 -15.9 -6.6 -16.7 -12.4 -15.2 -10.8 -11.3 -12.7 "
        "-16.2 -18.3 -18.9 -16.6 -19.9 -29.7",
    ),
    "B": (
        "0 .1072 .2155 .2095 .2870 .2986 .3752 .5055 .3681 .3697 .5700 .5283 1.1021 1.2756 1.5474 "
        "1.7842 2.0169 2.8294 3.0219 3.6187 4.1067 4.2790 4.7834",
        "0 -2.2 -4 -3.2 -9.8 -1.2 -3.4 -5.2 -7.6 -3 -8.9 -9 -4.8 -5.7 -7.5 -1.9 -7.6 -12.2 -9.8 "
        "-11.4 -14.9 -9.2 -11.3",
    ),
    "C": (
        "0 .2099 .2219 .2329 .2176 .6366 .6448 .6560 .6584 .7935 .8213 .9336 1.2285 1.3083 2.1704 "
        "2.7105 4.2589 4.6003 5.4902 5.6077 6.3065 6.6374 7.0427 8.6523",
        "-4.4 -1.2 -3.5 -5.2 -2.5 0 -2.2 -3.9 -7.4 -7.1 -10.7 -11.1 -5.1 -6.8 -8.7 -13.2 -13.9 "
        "-13.9 -15.8 -17.1 -16 -15.7 -21.6 -22.8",
    ),
}


@dataclass(frozen=True)
class Channel:
    """What the air does. spread: RMS delay spread in seconds. speed: m/s, carrier: Hz.

    correlation: between neighboring antennas, of the receiver and of the transmitters.
    """

    profile: str = "A"
    spread: float = 100e-9
    speed: float = 3 / 3.6
    carrier: float = 3.5e9
    correlation: tuple[float, float] = (0.0, 0.0)

    def __post_init__(self) -> None:
        if self.profile not in PROFILES:
            message, hint = f"profile {self.profile}", f"one of {', '.join(PROFILES)}"
        elif min(self.spread, self.speed, self.carrier) < 0:
            message = (
                f"spread {self.spread}, speed {self.speed}, carrier {self.carrier}"
            )
            hint = "none is negative"
        elif max(map(abs, self.correlation)) > 1:
            message, hint = f"correlation {self.correlation}", "from -1 to 1"
        else:
            return
        raise InputError(message, where="channel", hint=hint)


def taps(profile: str) -> tuple[np.ndarray, np.ndarray]:
    """Delays in units of the delay spread, and powers that sum to 1, both of shape (taps,)."""
    delays, powers = (np.array(text.split(), float) for text in PROFILES[profile])
    linear = 10 ** (powers / 10)
    return delays, linear / linear.sum()


def fading(
    channel: Channel, symbols: int, antennas: tuple[int, int], rng: np.random.Generator
) -> np.ndarray:
    """Amplitudes of the taps: complex128 of shape (taps, symbols, receivers, transmitters)."""
    _, powers = taps(channel.profile)
    waves = 20
    shape = (len(powers), 1, *antennas, waves)
    spread = rng.uniform(-np.pi / waves, np.pi / waves, shape)
    arrival = 2 * np.pi * np.arange(1, waves + 1) / waves + spread
    phase = rng.uniform(-np.pi, np.pi, shape)
    doppler = channel.speed * channel.carrier / LIGHT
    time = (np.arange(symbols) * SYMBOL).reshape(1, -1, 1, 1, 1)
    sum_ = np.exp(1j * (2 * np.pi * doppler * time * np.cos(arrival) + phase)).sum(-1)
    return sum_ * np.sqrt(powers / waves).reshape(-1, 1, 1, 1)


def root(antennas: int, correlation: float) -> np.ndarray:
    """A square root of the exponential correlation matrix, of shape (antennas, antennas)."""
    place = np.arange(antennas)
    matrix = np.asarray(correlation ** np.abs(place[:, None] - place[None]), float)
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T


def response(
    channel: Channel,
    subcarriers: int,
    symbols: int,
    antennas: tuple[int, int],
    rng: np.random.Generator,
) -> np.ndarray:
    """The channel of each resource element, with E|h|² = 1.

    antennas: of the receiver, and of the transmitters (layers).
    Returns complex128 of shape (symbols, receivers, layers, subcarriers).
    """
    delays, _ = taps(channel.profile)
    amplitude = fading(channel, symbols, antennas, rng)
    amplitude = root(antennas[0], channel.correlation[0]) @ amplitude
    amplitude = amplitude @ root(antennas[1], channel.correlation[1])
    frequency = (np.arange(subcarriers) - subcarriers / 2) * SPACING
    turn = np.exp(-2j * np.pi * np.outer(delays * channel.spread, frequency))
    return np.moveaxis(amplitude, 0, -1) @ turn
