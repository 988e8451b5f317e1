"""Recipes of separated operators: the elements that are taken, and the room that places take."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.targets.npu.expansion import EvenPlaces, recipe
from tilewright.targets.npu.tasks import Addresses, Evaluated, TaskOperand


def values(*shapes: tuple[int, ...]) -> tuple[Evaluated, list[Addresses]]:
    made = Evaluated()
    made.inputs = [made.new(f"v{n}", shape, "dram") for n, shape in enumerate(shapes)]
    return made, [v.addresses for v in made.inputs]


def taken(made: Evaluated, view: Addresses) -> tuple[Addresses, bool]:
    """What a source of these elements takes, and whether its places are even."""
    made.outputs = [view]
    (source,) = recipe(made).outputs
    pieces = [TaskOperand(v.addresses, fixed=True) for v in made.inputs]
    return source.taken(pieces), isinstance(source.places, EvenPlaces)


def crooked(a: Addresses) -> Addresses:
    return np.stack([a[0], a[1], a[3]])


@pytest.mark.parametrize(
    ("cut", "even"),
    [
        (lambda a, b: a, True),
        (lambda a, b: a.T[1::2], True),
        (lambda a, b: a[2:3, 1:2], True),
        (lambda a, b: a[3, 2], True),
        (lambda a, b: np.concatenate([a, b]), True),
        (lambda a, b: np.concatenate([a, b])[3:5, 1::2], True),
        (lambda a, b: np.concatenate([b, a]), False),
        (lambda a, b: a[::-1], False),
        (lambda a, b: a[:, ::-1], False),
        (lambda a, b: crooked(a), False),
        (lambda a, b: crooked(a.T).T, False),
        (lambda a, b: np.stack([a[0], a[0], a[1]]), False),
    ],
)
def test_a_source_takes_the_elements_it_was_made_of(cut: object, even: bool) -> None:
    assert callable(cut)
    made, (a, b) = values((4, 5), (2, 5))
    view = cut(a, b)
    found, is_even = taken(made, view)
    np.testing.assert_array_equal(found, view)
    assert is_even == even


def test_sources_of_other_elements_have_other_keys() -> None:
    made, (a, b) = values((4, 4), (4, 4))
    views = [a, b, a.T, a[:2], a[1:3], a[:2, :3], np.concatenate([a, b]), a[::-1]]
    made.outputs = views
    keys = [source.key for source in recipe(made).outputs]
    assert len(set(keys)) == len(views)


def test_the_rows_of_a_product_share_the_places_of_a_tile() -> None:
    made, (a, b) = values((4, 4), (1, 4))
    padded = np.concatenate([b, a[:2]])
    made.outputs = [padded, padded.copy()]
    one, two = recipe(made).outputs
    assert one is two
