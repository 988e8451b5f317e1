"""Detection as an ONNX model: gram matrix, its factors, matched filter, triangular solutions.

python examples/pusch/model.py [subcarriers [antennas [layers]]]

A complex matrix is the real one [[Re, -Im], [Im, Re]], which is a product of such matrices whenever
the complex one is, and symmetric and positive definite whenever that is Hermitian and so. The
factorizations and the triangular solutions are operators of the domain `tilewright`.
"""

from __future__ import annotations

import sys

import numpy as np
import onnx
import onnx.parser
from slot import Layout

# Attributes of the two solutions with what a factorization leaves.
SOLUTIONS = {
    "Cholesky": ("upper = 0", "transpose = 1"),
    "LU": ("unit = 1", "upper = 1"),
}


def model(layout: Layout, factorization: str) -> onnx.ModelProto:
    """From h, y and noise to the solutions of (HᴴH + noise) x = Hᴴy, biased as they are.

    factorization: "Cholesky" or "LU".
    """
    forward, backward = SOLUTIONS[factorization]
    s, m, k, symbols = (
        layout.subcarriers,
        2 * layout.antennas,
        2 * layout.layers,
        layout.data,
    )
    return onnx.parser.parse_model(f"""
<ir_version: 10, opset_import: ["" : 21, "tilewright" : 1]>
pusch_{factorization.lower()}
    (float[{s},{m},{k}] h, float[{s},{m},{symbols}] y, float[{k},{k}] noise)
    => (float[{s},{k},{symbols}] x) {{
  adjoint = Transpose <perm = [0, 2, 1]> (h)
  gram = MatMul(adjoint, h)
  regular = Add(gram, noise)
  factors = tilewright.{factorization}(regular)
  filtered = MatMul(adjoint, y)
  z = tilewright.TriangularSolve <{forward}> (factors, filtered)
  x = tilewright.TriangularSolve <{backward}> (factors, z)
}}
""")


def real(matrices: np.ndarray) -> np.ndarray:
    """Complex (..., m, k) as float32 (..., 2 m, 2 k)."""
    upper = np.concatenate([matrices.real, -matrices.imag], -1)
    lower = np.concatenate([matrices.imag, matrices.real], -1)
    return np.concatenate([upper, lower], -2).astype(np.float32)


def main() -> None:
    words = sys.argv[1:]
    sizes = [int(w) for w in [*words, *["16", "4", "4"][len(words) :]]]
    for factorization in ("Cholesky", "LU"):
        path = f"pusch_{factorization.lower()}.onnx"
        onnx.save(model(Layout(*sizes), factorization), path)
        print(f"{path} written: tilewright explore {path}")


if __name__ == "__main__":
    main()
