"""How far a solution in single precision may be from the exact one, and how far it is.

For A = HᴴH + noise I and z = Hᴴy, to first order in the unit roundoff u = 2⁻²⁴: the computed gram
matrix is off by (M + 2) u tr A, z by (M + 2) u |H| |y| (Higham, Accuracy and Stability of Numerical
Algorithms, 3.5), and the factorization with its two triangular solutions solves for a matrix that
is off by (3 K + 1) u tr A (10.3, 10.4; tr A is the squared norm of the triangular factor, and LU
without pivots has the same factors up to scaling). A complex product errs by up to 2√2 u, a real
one by u; with 4 in place of 2√2, for the rounding of the inputs,

    |x - x'| / |x|  <=  4 (M + 3 K + 3) u |A⁻¹| (tr A + |H| |y| / |x|).

This is the condition number of A, times K at most, times 4 (M + 3 K + 3) u, and what z adds.
"""

from __future__ import annotations

import numpy as np


def accuracy(
    h: np.ndarray, y: np.ndarray, noise: float, found: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The relative error of solutions, and the bound, both (subcarriers,).

    h: (antennas, layers, subcarriers). y: (symbols, antennas, subcarriers).
    found: solutions of A x = Hᴴy, (layers, symbols, subcarriers).
    """
    h, y = np.moveaxis(h, -1, 0).astype(complex), y.transpose(2, 1, 0).astype(complex)
    adjoint = h.conj().swapaxes(1, 2)
    antennas, layers = h.shape[1:]
    a = adjoint @ h + noise * np.eye(layers)
    exact = np.linalg.solve(a, adjoint @ y)
    size = np.linalg.norm(exact, axis=(1, 2))
    error = np.linalg.norm(np.moveaxis(found, -1, 0) - exact, axis=(1, 2)) / size
    inverse = np.linalg.norm(np.linalg.inv(a), 2, axis=(1, 2))
    both = np.linalg.norm(h, axis=(1, 2)) * np.linalg.norm(y, axis=(1, 2)) / size
    trace = np.trace(a, axis1=1, axis2=2).real
    return error, 4 * (antennas + 3 * layers + 3) * 2.0**-24 * inverse * (trace + both)
