"""Recurrent weights in panels: panels[p, k, l] = R[p * TILE + l, k], then rows of zeros.

Also other definitions shared by the steps of LSTM, GRU and RNN.
"""

from __future__ import annotations

import numpy as np

from tilewright.graph.nodes import Value
from tilewright.graph.ops.derivative import extents, turned
from tilewright.graph.ops.fragment import Fragment

DOMAIN = "tilewright"
# By kind: the numbers of inputs and of states of its steps.
INPUTS = {"LSTM": 6, "GRU": 6, "RNN": 5}
STATES = {"LSTM": 2, "GRU": 1, "RNN": 1}
LANES = 16  # rows of the recurrent weights are padded to a multiple
TILE = 64  # rows per panel


def panels(f: Fragment, r: Value) -> Value:
    """The panels of weights [rows, units]."""
    rows, units = extents(r)
    tile = TILE if rows >= TILE else -(-rows // LANES) * LANES
    missing = -rows % tile
    if missing:
        assert r.dtype is not None
        zeros = f.constant(np.zeros((missing, units), r.dtype.numpy))
        r = f.op("Concat", r, zeros, axis=0)
    return turned(f, f.reshape(r, -1, tile, units))


def from_panels(f: Fragment, p: Value, rows: int) -> Value:
    """The weights [rows, units], from panels."""
    _, units, _ = extents(p)
    r = f.reshape(turned(f, p), -1, units)
    return f.op("Slice", r, f.ints(0), f.ints(rows), f.ints(0))
