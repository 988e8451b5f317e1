"""The baselines: what was chosen as numbers, and a kernel without its loops."""

from __future__ import annotations

import random

import numpy as np

from tests.tune.features import kernels
from tests.tune.features.kernels import rows
from tilewright.schedule import Schedule
from tilewright.schedule.space import Sketch
from tilewright.tune.base import Candidate
from tilewright.tune.features import Flattened, WithoutLoops, names

SOME = [
    Candidate("tiled", {"tile": (6, 2), "pack": True, "order": "rows"}),
    Candidate("tiled", {"tile": (4, 4), "pack": False, "order": "columns"}),
    Candidate("plain", {"unroll": None}),
]


def test_values_are_columns_in_the_order_of_their_names():
    found = Flattened.fit(SOME)
    columns = [
        "order=columns",
        "order=rows",
        "pack",
        "sketch=plain",
        "sketch=tiled",
        "tile.0",
        "tile.1",
        "unroll=None",
    ]
    assert list(names(found)) == columns  # type: ignore[arg-type]
    assert found.extract(SOME).tolist() == [
        [0, 1, 1, 0, 1, 6, 2, 0],
        [1, 0, 0, 0, 1, 4, 4, 0],
        [0, 0, 0, 1, 0, 0, 0, 1],
    ]


def test_the_order_of_candidates_and_values_means_nothing():
    turned = [Candidate(c.sketch, dict(reversed(c.values.items()))) for c in SOME[::-1]]
    found = Flattened.fit(turned)
    assert found == Flattened.fit(SOME)
    assert np.array_equal(
        found.extract(turned), Flattened.fit(SOME).extract(SOME)[::-1]
    )


def test_what_was_stored_as_json_has_the_same_numbers():
    found = Flattened.fit(SOME)
    stored = [Candidate.parse(c.key) for c in SOME]
    assert np.array_equal(found.extract(stored), found.extract(SOME))


def test_values_that_were_not_met_are_none_of_those_that_were():
    found = Flattened.fit(SOME)
    new = Candidate("other", {"tile": (8,), "order": "waves", "extra": 3})
    assert found.extract([new]).tolist() == [[0, 0, 0, 0, 0, 8, 0, 0]]
    assert found.extract([]).shape == (0, 8)


def test_a_parameter_with_numbers_and_words():
    some = [Candidate("s", {"p": 4}), Candidate("s", {"p": "auto"})]
    found = Flattened.fit(some)
    assert [c.name for c in found.columns] == ["p", "p=auto", "sketch=s"]
    assert found.extract(some).tolist() == [[4, 0, 1], [0, 1, 1]]


def test_points_of_a_sketch_are_told_apart():
    def run(choose):
        s = Schedule(kernels.plain_product())
        s.split("m.j", choose("tile", [2, 4, 8], 4))
        return s

    r = random.Random(0)
    points = [Sketch("s", run).random(r) for _ in range(12)]
    found = [Candidate.of(p) for p in points]
    given = Flattened.fit(found).extract(found)
    assert given[:, 1].tolist() == [c.values["tile"] for c in found]


def test_without_loops_the_product_is_its_operations_and_tensors():
    (row,) = rows(WithoutLoops(tensors=4), kernels.product())
    assert row == {
        "float_addsub_kinds": 1,
        "float_mul_kinds": 1,
        "tensor_0": 512,
        "tensor_1": 256,
        "tensor_2": 128,
        "tensors": 3,
    }
