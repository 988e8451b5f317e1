"""Answers of isl are kept, each under all that it follows from."""

import islpy
import pytest

from tilewright.compute import isl
from tilewright.compute.isl import Domain, IslLimitReached, greatest, sample


def square(n: int = 9) -> Domain:
    domain = Domain()
    x, y = domain.variable(), domain.variable()
    domain.require(f"0 <= {x} < {n}")
    domain.require(f"0 <= {y} < {n}")
    return domain


def kept() -> int:
    return isl._answered.cache_info().hits


def test_the_same_question_is_asked_once() -> None:
    isl._answered.cache_clear()
    found = sample(square(), ["x0 + x1 = 16"])
    assert found == [8, 8] and kept() == 0
    found.append(3)  # the caller's own
    assert sample(square(), ["x0 + x1 = 16"]) == [8, 8] and kept() == 1


def test_another_text_question_or_limit_is_asked_anew(monkeypatch) -> None:
    isl._answered.cache_clear()
    assert sample(square(), ["x0 = 8"]) is not None
    assert sample(square(), ["x0 = 9"]) is None
    assert sample(square(8), ["x0 = 8"]) is None
    text = square().text("x0 = 8")
    assert isl._ask(text, str, None) != isl._ask(text, isl._point, None)
    assert greatest(square(), "x0") == 8
    with pytest.raises(IslLimitReached):
        sample(square(), ["x0 = 8"], 1)
    monkeypatch.setattr(isl, "MAX_OPERATIONS", 1)
    with pytest.raises(IslLimitReached):
        sample(square(), ["x0 = 8"])


def test_so_many_are_kept() -> None:
    assert isl._answered.cache_info().maxsize == isl._ANSWERS


def test_a_limit_that_is_reached_while_a_set_is_read_is_no_syntax_error() -> None:
    """isl tells of it in either way, by the number that it may do."""
    domain = Domain()
    x, y = domain.variable(), domain.variable()
    domain.require(f"0 <= {x} < 30")
    rows = x
    for k in range(11):
        rows = f"({rows} - floor(({x} + {k}) / 18))"
    row = f"4 * floor(({rows} + 2) / 4) + {y}"
    for limit in range(100, 60_000, 2_000):
        with pytest.raises(IslLimitReached):
            sample(domain, [f"({row} < {rows} and 0 <= {row})"], limit)
    with pytest.raises(islpy.Error, match="syntax"):
        sample(domain, ["0 <= "])
