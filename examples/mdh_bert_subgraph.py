"""BERT's attention mask: four operators, one MDH expression, one kernel; timed beside PyTorch.

python examples/mdh_bert_subgraph.py [batch] [length] [rounds] [--without-compile]

The subgraph is that of figure 1 in "Code generation for deep-learning computations via
multi-dimensional homomorphisms" (SC 2021): Mul, ExpandDims, Sub, Mul.
"""

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

from tilewright import mdh
from tilewright.lang.mdh import (
    cc,
    float32,
    inp_view,
    md_hom,
    mul,
    out_view,
)


def four_operators(batch: int, n: int) -> list[mdh.Expression]:
    """As the network has them, each with its result in memory."""
    product = (
        out_view[float32](M=[lambda i, j, k: (i, j, k)])
        @ md_hom[batch, n, n](mul, (cc, cc, cc), name="product")
        @ inp_view[float32, float32](
            IB1=[lambda i, j, k: (i, j, 0)], IB2=[lambda i, j, k: (i, 0, k)]
        )
    )
    expanded = (
        out_view[float32](X=[lambda i, j, k: (i, 0, j, k)])
        @ md_hom[batch, n, n](lambda m: m, (cc, cc, cc), name="expand_dims")
        @ inp_view[product](m=[lambda i, j, k: (i, j, k)])
    )
    inverted = (
        out_view[float32](S=[lambda *i: i])
        @ md_hom[batch, 1, n, n](lambda x: 1.0 - x, (cc, cc, cc, cc), name="sub")
        @ inp_view[expanded](x=[lambda *i: i])
    )
    scaled = (
        out_view[float32](OB1=[lambda i1, i2, i3, i4: (i1, i2, i3, i4)])
        @ md_hom[batch, 1, n, n](lambda s: s * -10000.0, (cc, cc, cc, cc), name="scale")
        @ inp_view[inverted](s=[lambda *i: i])
    )
    return [product, expanded, inverted, scaled]


def one_expression(batch: int, n: int) -> mdh.Expression:
    """The same, written by hand."""
    return (
        out_view[float32](OB1=[lambda i1, i2, i3, i4: (i1, i2, i3, i4)])
        @ md_hom[batch, 1, n, n](
            lambda x1, x2: (1.0 - (x1 * x2)) * -10000.0, (cc, cc, cc, cc), name="mask"
        )
        @ inp_view[float32, float32](
            IB1=[lambda i1, i2, i3, i4: (i1, i3, 0)],
            IB2=[lambda i1, i2, i3, i4: (i1, 0, i4)],
        )
    )


def one_by_one(
    operators: list[mdh.Expression], result: np.ndarray
) -> Callable[[np.ndarray, np.ndarray], None]:
    """Four kernels in a row, three intermediate tensors."""
    functions = [mdh.build(c) for c in operators]
    between = [np.empty(c.results[0].shape, np.float32) for c in operators[:-1]]

    def run(x: np.ndarray, y: np.ndarray) -> None:
        functions[0](x, y, between[0])
        for n, f in enumerate(functions[1:]):
            f(between[n], result if n == 2 else between[n + 1])

    return run


def rivals(
    x: np.ndarray, y: np.ndarray, compiled: bool
) -> dict[str, Callable[[], object]]:
    """PyTorch on the same arrays: in memory at hand, eager and, where it runs, torch.compile.

    The latter two ask for memory anew, which costs more than the arithmetic.
    """
    try:
        import torch
    except ImportError:
        print("PyTorch is not installed: nothing to compare with")
        return {}

    def mask(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (1.0 - (a * b).unsqueeze(1)) * -10000.0

    a, b = torch.from_numpy(x), torch.from_numpy(y)
    memory = torch.empty(np.broadcast_shapes(x.shape, y.shape))

    def in_place() -> torch.Tensor:
        torch.mul(a, b, out=memory)
        return memory.neg_().add_(1.0).mul_(-10000.0).unsqueeze(1)

    found: dict[str, Callable[[], object]] = {
        "torch in place": in_place,
        "torch eager": lambda: mask(a, b),
    }
    if not compiled:
        print("torch.compile: left out, as asked")
        return found
    fast = torch.compile(mask)
    try:
        fast(a, b)
    except Exception as error:  # it needs a C++ compiler, and says so in many ways
        print(f"torch.compile: cannot run here ({type(error).__name__})")
        return found
    return found | {"torch.compile": lambda: fast(a, b)}


def main() -> None:
    words = [w for w in sys.argv[1:] if not w.startswith("--")]
    batch, n, rounds = (int(w) for w in [*words, *["16", "384", "30"][len(words) :]])
    operators = four_operators(batch, n)
    derived = mdh.fuse(*operators, name="mask")
    written = one_expression(batch, n)
    print(mdh.show(derived))
    print("derived and written by hand are equal:", mdh.equal(derived, written))
    kernel = mdh.schedule(derived, target="cpu").kernel
    print(kernel, end="\n\n")

    rng = np.random.default_rng(0)
    x = rng.integers(0, 2, (batch, n, 1)).astype(np.float32)
    y = rng.integers(0, 2, (batch, 1, n)).astype(np.float32)
    result, result4 = (np.empty((batch, 1, n, n), np.float32) for _ in range(2))
    fused, four = mdh.build(derived), one_by_one(operators, result4)
    ways: dict[str, Callable[[], object]] = {
        "four kernels": lambda: four(x, y),
        "one kernel": lambda: fused(x, y, result),
        # As PyTorch does: memory for the result is asked for anew.
        "  new memory": lambda: fused(x, y, np.empty_like(result)),
        **rivals(x, y, "--without-compile" not in sys.argv),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, run in ways.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    expected = (1.0 - (x * y)[:, None]) * np.float32(-10000.0)
    print(
        "agrees with NumPy:", (result == expected).all() and (result4 == expected).all()
    )
    print(f"{'':<16}{'median':>11}{'least':>11}")
    for name, seconds in times.items():
        print(
            f"{name:<16}{statistics.median(seconds) * 1e3:>8.2f} ms{min(seconds) * 1e3:>8.2f} ms"
        )


if __name__ == "__main__":
    main()
