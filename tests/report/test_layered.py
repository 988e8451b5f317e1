"""Layered drawings: boxes apart, edges downwards, through the gaps between boxes."""

import random
from itertools import pairwise

import pytest

from tilewright.report.layered import layout

CHAIN = [(0, 1), (1, 2)]
SKIP = [(0, 1), (1, 2), (2, 3), (0, 3)]


def random_dag(seed):
    r = random.Random(seed)
    count = r.randint(2, 40)
    ends = [(r.randrange(n), n) for n in range(1, count)]
    ends += [
        (a, b) for a, b in (sorted(r.sample(range(count), 2)) for _ in range(count))
    ]
    return [(r.uniform(20, 200), 30) for _ in range(count)], ends


@pytest.mark.parametrize("seed", range(12))
def test_no_boxes_meet_and_edges_lead_down(seed):
    sizes, ends = random_dag(seed)
    found = layout(sizes, ends)
    boxes = [
        (x - w / 2, y, x + w / 2, y + h)
        for (x, y), (w, h) in zip(found.places, sizes, strict=True)
    ]
    for n, a in enumerate(boxes):
        assert (
            a[0] >= -1e-6 and a[2] <= found.width + 1e-6 and a[3] <= found.height + 1e-6
        )
        for b in boxes[n + 1 :]:
            apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
            assert apart, (a, b)
    for (source, target), route in zip(ends, found.routes, strict=True):
        assert found.places[source][1] < found.places[target][1]
        assert all(y1 <= y2 for (_, y1), (_, y2) in pairwise(route))
        for n, (left, top, right, bottom) in enumerate(boxes):
            if n not in (source, target):
                crossed = any(
                    left < x1 < right and x1 == x2 and y1 < bottom and top < y2
                    for (x1, y1), (x2, y2) in pairwise(route)
                )
                assert not crossed, "an edge passes under a box"


def test_a_chain_is_straight_and_a_skip_goes_around():
    chain = layout([(50, 20)] * 3, CHAIN)
    assert len({x for x, _ in chain.places}) == 1
    skip = layout([(50, 20)] * 4, SKIP)
    assert len(skip.routes[3]) == 6  # both ends, and two points in each layer between


def test_nothing_and_one_box():
    assert layout([], []).places == []
    assert layout([(40, 10)], []).places == [(20, 0)]
