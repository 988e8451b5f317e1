"""Gradients of factorizations: against central differences in float64, and PyTorch's.

A case is an operator, the shape of a matrix, and which results count: their sum with random weights
is differentiated. Vectors are squared, as their signs are free, and only symmetric matrices have
`SymmetricEigen`, so that it gets a matrix plus its transpose.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import onnx.parser
import pytest
import torch

import tilewright as tw
from tests.graph.test_operator_gradients import differences
from tilewright.base.errors import ModelError, UnsupportedError

RNG = np.random.default_rng(5)
FREE_SIGNS = {"SVD": "uv", "SymmetricEigen": "v"}

Shape = tuple[int, ...]


def matrix(*shape: int) -> Any:
    """Random, and far from one with equal or zero singular values."""
    return RNG.uniform(-1, 1, shape) + 2 * np.eye(*shape[-2:])


def shapes(op: str, shape: Shape, full: bool) -> dict[str, Shape]:
    """The float results and their shapes."""
    *batch, m, n = shape
    k = min(m, n)
    width = m if full else k
    ends: dict[str, dict[str, Shape]] = {
        "LU": {"f": (m, n)},
        "PivotedLU": {"f": (m, n)},
        "QR": {"q": (m, width), "r": (width, n)},
        "SVD": {"u": (m, width), "s": (k,), "v": (n, n)},
        "SymmetricEigen": {"s": (n,), "v": (n, n)},
    }
    return {r: (*batch, *end) for r, end in ends[op].items()}


def model(op: str, shape: Shape, used: str, full: bool = False) -> Any:
    """x and the weights of each result -> y, the sum of the used results times their weights."""
    kinds = shapes(op, shape, full)
    axes = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    given = [f"double{list(shape)} x"]
    lines = ["a = Identity(x)"]
    if op == "SymmetricEigen":
        lines = [f"xt = Transpose<perm={axes}>(x)", "a = Add(x, xt)"]
    names = ", ".join(r if r in used else "" for r in kinds)
    flags = "<full=1>" if full else ""
    lines.append(f"{names.rstrip(', ')} = tilewright.{op}{flags}(a)")
    for r in used:
        given.append(f"double{list(kinds[r])} w{r}")
        free = r in FREE_SIGNS.get(op, "")
        lines += [
            f"{r}1 = Mul({r}, {r if free else 'one'})",
            f"{r}2 = Mul({r}1, w{r})",
            f"{r}3 = ReduceSum<keepdims=0>({r}2)",
        ]
    body = "\n".join(lines)
    total = ", ".join(f"{r}3" for r in used)
    return onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 21, "tilewright": 1]>
        m ({", ".join(given)}) => (double y) <double one = {{1.0}}> {{
          {body}
          y = Sum({total})
        }}"""
    )


def weights(op: str, shape: Shape, used: str, full: bool = False) -> list[Any]:
    kinds = shapes(op, shape, full)
    return [RNG.uniform(0.5, 1.5, kinds[r]) for r in used]


def native(source: Any) -> Any:
    return tw.compile(source, threads=1, cache=False)


def of_torch(op: str, x: Any, used: str, given: list[Any]) -> Any:
    """PyTorch's gradient of the same sum."""
    a = torch.tensor(x, requires_grad=True)
    names = list(shapes(op, x.shape, False))
    whole = a + a.mT if op == "SymmetricEigen" else a
    made: dict[str, Any] = {
        "PivotedLU": lambda: torch.linalg.lu_factor(whole)[:1],
        "QR": lambda: torch.linalg.qr(whole),
        "SVD": lambda: torch.linalg.svd(whole, full_matrices=False),
        "SymmetricEigen": lambda: torch.linalg.eigh(whole),
    }
    found = dict(zip(names, made[op](), strict=True))
    total = torch.zeros((), dtype=torch.float64)
    for r, w in zip(used, given, strict=True):
        part = found[r] ** 2 if r in FREE_SIGNS.get(op, "") else found[r]
        total = total + (part * torch.tensor(w)).sum()
    total.backward()  # type: ignore[no-untyped-call]
    assert a.grad is not None
    return a.grad.numpy()


CASES: list[tuple[str, Shape, str, bool]] = [
    ("LU", (4, 4), "f", False),
    ("LU", (2, 3, 3), "f", False),
    ("PivotedLU", (4, 4), "f", False),
    ("PivotedLU", (2, 5, 3), "f", False),
    ("PivotedLU", (2, 3, 5), "f", False),
    ("QR", (4, 4), "qr", False),
    ("QR", (2, 5, 3), "qr", False),
    ("QR", (2, 3, 5), "qr", False),
    ("QR", (2, 3, 5), "q", False),
    ("QR", (5, 3), "r", False),
    ("QR", (5, 3), "r", True),
    ("QR", (3, 5), "qr", True),
    ("SVD", (4, 4), "usv", False),
    ("SVD", (2, 5, 3), "usv", False),
    ("SVD", (5, 3), "u", False),
    ("SVD", (5, 3), "s", False),
    ("SVD", (5, 3), "v", False),
    ("SVD", (5, 3), "sv", True),
    ("SVD", (4, 4), "usv", True),
    ("SymmetricEigen", (4, 4), "sv", False),
    ("SymmetricEigen", (2, 3, 3), "s", False),
    ("SymmetricEigen", (2, 3, 3), "v", False),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("op", "shape", "used", "full"), CASES)
def test_agrees_with_differences_and_pytorch(
    op: str, shape: Shape, used: str, full: bool
) -> None:
    source = model(op, shape, used, full)
    x = matrix(*shape)
    given = weights(op, shape, used, full)
    value = native(source)
    got = native(tw.grad(source, "x"))(x, *given)
    want = differences(lambda a: value(a, *given), [x], 0)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)
    if op != "LU" and not full:
        want = of_torch(op, x, used, given)
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    ("op", "what"),
    [("QR", "Q has more than 3 columns"), ("SVD", "U has more than 3 columns")],
)
def test_columns_that_are_not_determined_are_refused(op: str, what: str) -> None:
    used = {"QR": "q", "SVD": "u"}[op]
    source = model(op, (5, 3), used, full=True)
    with pytest.raises(UnsupportedError, match=f"{op}.*no derivative: {what}"):
        tw.grad(source, "x")


@pytest.mark.parametrize("op", ["SVD", "SymmetricEigen"])
def test_equal_values_have_derivatives_and_their_vectors_none(op: str) -> None:
    """Half the derivative of the sum of the values is that of a trace."""
    x = np.eye(3)
    of_values = native(tw.grad(model(op, (3, 3), "s"), "x"))(x, np.ones(3))
    size = 2 if op == "SymmetricEigen" else 1
    np.testing.assert_allclose(of_values, size * np.eye(3), atol=1e-15)
    of_vectors = native(tw.grad(model(op, (3, 3), "v"), "x"))
    assert not np.isfinite(of_vectors(x, *weights(op, (3, 3), "v"))).any()


@pytest.mark.parametrize(
    ("op", "used"), [("QR", "q"), ("PivotedLU", "f"), ("SVD", "u")]
)
def test_a_matrix_of_less_than_full_rank_has_none(op: str, used: str) -> None:
    x = np.outer(np.arange(1.0, 5.0), [1.0, 0.5, 0.25])
    x[:, 2] = 0.0
    found = native(tw.grad(model(op, (4, 3), used), "x"))
    assert not np.isfinite(found(x, *weights(op, (4, 3), used))).all()


@pytest.mark.parametrize(
    ("op", "shape", "used"),
    [("QR", (3, 2), "qr"), ("SVD", (3, 2), "us"), ("SymmetricEigen", (3, 3), "sv")],
)
def test_second_derivatives(op: str, shape: Shape, used: str) -> None:
    """Of the sum of squares of the first derivatives, by differences of them."""
    source = model(op, shape, used)
    x = matrix(*shape)
    given = weights(op, shape, used)
    first = tw.grad(source, "x")
    both = native(tw.jvp(first, "x"))
    along = RNG.uniform(-1, 1, shape)
    _, got = both(x, *given, along)
    slope = native(first)
    step = 1e-6
    high, low = (slope(x + s * along, *given) for s in (step, -step))
    np.testing.assert_allclose(got, (high - low) / (2 * step), rtol=1e-5, atol=1e-6)


class Wide(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, values, right = torch.linalg.svd(x, full_matrices=False)
        exchanges, lower, upper = torch.linalg.lu(x)
        some = (left**2).sum() + (right[..., 0] ** 2).sum() + values.prod(-1).sum()
        return some + (exchanges @ lower).sin().sum() + upper.sin().sum()


def test_a_module_of_wide_matrices() -> None:
    x = torch.tensor(matrix(2, 3, 4), requires_grad=True)
    module = Wide()
    module(x).backward()
    assert x.grad is not None
    given = x.detach()
    graph = tw.grad(copy.deepcopy(module), example_inputs=(given,))
    got = native(graph)(given.numpy())
    np.testing.assert_allclose(got, x.grad.numpy(), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_results_at_the_end_may_be_left_out(count: int) -> None:
    names = ", ".join("fpi"[:count])
    source = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 21, "tilewright": 1]>
        m (double[2, 4, 3] x) => (double[2, 4, 3] f) {{ {names} = tilewright.PivotedLU(x) }}"""
    )
    x = matrix(2, 4, 3)
    want = torch.linalg.lu_factor(torch.tensor(x))[0].numpy()
    np.testing.assert_allclose(native(source)(x), want, rtol=1e-12, atol=1e-14)


def test_fewer_rows_than_exchanges_are_refused() -> None:
    source = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 21, "tilewright": 1]>
        m (int32[3] x) => (int64[2] y) { y = tilewright.PivotOrder<rows=2>(x) }"""
    )
    with pytest.raises(ModelError, match="2 rows, fewer than the 3 exchanges"):
        native(source)
