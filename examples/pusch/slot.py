"""A slot of PUSCH as the receiver's antennas see it: reference symbols first, then data.

Reference symbols (DMRS) are of type 1: a layer has every other subcarrier, shares it with one other
layer by signs over two neighbors, and from the fifth layer on by signs over two symbols as well.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from channel import Channel, response
from modulation import BITS, modulate

from tilewright.base.errors import InputError


@dataclass(frozen=True)
class Layout:
    """Sizes of a slot. subcarriers: a multiple of 4. layers: up to 8."""

    subcarriers: int = 3276
    antennas: int = 4
    layers: int = 4
    modulation: str = "16QAM"
    symbols: int = 14

    def __post_init__(self) -> None:
        if self.subcarriers < 8 or self.subcarriers % 4:
            message, hint = f"{self.subcarriers} subcarriers", "a multiple of 4, from 8"
        elif not 1 <= self.layers <= min(8, self.antennas):
            message = f"{self.layers} layers at {self.antennas} antennas"
            hint = "1 to 8 layers, and no more than antennas"
        elif self.modulation not in BITS:
            message, hint = f"modulation {self.modulation}", f"one of {', '.join(BITS)}"
        elif self.symbols <= self.pilots:
            message, hint = f"{self.symbols} symbols", "more than are reference symbols"
        else:
            return
        raise InputError(message, where="layout", hint=hint)

    @property
    def pilots(self) -> int:
        """How many symbols at the start of the slot are reference symbols."""
        return 1 if self.layers <= 4 else 2

    @property
    def data(self) -> int:
        """How many symbols carry data."""
        return self.symbols - self.pilots

    @property
    def bits(self) -> int:
        """How many bits a symbol carries."""
        return BITS[self.modulation]


@dataclass(frozen=True)
class Slot:
    """What was sent and what arrived; complex values in double precision.

    bits: (bits, layers, data symbols, subcarriers) of 0 and 1. pilots: (pilot symbols,
    subcarriers), of modulus 1. channel: (symbols, antennas, layers, subcarriers).
    received: (symbols, antennas, subcarriers). noise: its variance.
    """

    bits: np.ndarray
    pilots: np.ndarray
    channel: np.ndarray
    received: np.ndarray
    noise: float


def comb(layer: int) -> int:
    """The offset, 0 or 1, of the subcarriers on which a layer sends reference symbols."""
    return layer // 2 % 2


def signs(layout: Layout) -> np.ndarray:
    """Signs of the layers' reference symbols: (layers, pilot symbols, 2 neighbors)."""
    layer, symbol, neighbor = np.indices((layout.layers, layout.pilots, 2))
    return (1 - 2 * (layer % 2 * neighbor)) * (1 - 2 * (layer // 4 * symbol))


def send(
    layout: Layout, channel: Channel, snr: float, rng: np.random.Generator
) -> Slot:
    """One slot over one draw of the channel. snr: in dB, of all layers at one antenna."""
    count, pilot_symbols = layout.subcarriers, layout.pilots
    h = response(channel, count, layout.symbols, (layout.antennas, layout.layers), rng)
    shape = (layout.bits, layout.layers, layout.data, count)
    bits = rng.integers(0, 2, shape, dtype=np.uint8)
    pilots = modulate(rng.integers(0, 2, (2, pilot_symbols, count)), "QPSK")
    sent = np.zeros((layout.symbols, layout.layers, count), complex)
    sent[pilot_symbols:] = modulate(bits, layout.modulation).swapaxes(0, 1)
    for layer, sign in enumerate(signs(layout)):
        for neighbor in range(2):
            at = slice(comb(layer) + 2 * neighbor, None, 4)
            sent[:pilot_symbols, layer, at] = sign[:, neighbor, None] * pilots[:, at]
    noise = layout.layers * 10 ** (-snr / 10)
    clean = np.einsum("tmks,tks->tms", h, sent)
    white = rng.standard_normal((2, *clean.shape))
    received = clean + np.sqrt(noise / 2) * (white[0] + 1j * white[1])
    return Slot(bits, pilots, h, received, noise)
