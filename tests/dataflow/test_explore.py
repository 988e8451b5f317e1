"""Exploration: bounds against every combination, searches against them, results kept in a file."""

import math
import random
import time
from itertools import pairwise
from pathlib import Path

import onnx
import pytest

from tests.dataflow.models import lenet, model
from tilewright.base.errors import InputError
from tilewright.dataflow.evaluate import GANG, LISTS, Method
from tilewright.dataflow.explore import Exploration, explore, groups_of
from tilewright.dataflow.lower import OperatorNetwork, network
from tilewright.dataflow.results import ResultStore
from tilewright.frontends.onnx import load
from tilewright.frontends.torch import to_onnx

PES = [1, 3, 8, 40]
SEEDS = [range(4), pytest.param(range(4, 18), marks=pytest.mark.slow)]


def random_network(seed: int) -> OperatorNetwork:
    """Up to five operators on 6x6 matrices; some read two earlier results."""
    rng = random.Random(seed)
    lines, names = [], ["x"]
    for n in range(rng.randrange(2, 5)):
        a, b = rng.choice(names[-2:]), rng.choice(names)
        forms = [f"MatMul({a}, w)", f"MatMul({a}, {b})", f"Relu({a})", f"Add({a}, {b})"]
        forms += [f"Softmax({a})", f"Transpose({a})"]
        lines.append(f"v{n} = {rng.choice(forms)}")
        names.append(f"v{n}")
    unread = [
        n for n in names[1:] if not any(f"({n}" in x or f" {n})" in x for x in lines)
    ]
    body = "\n".join(lines)
    for n, name in enumerate(unread):
        body = body.replace(f"{name} =", f"y{n} =")
    outputs = ", ".join(f"float[6,6] y{n}" for n in range(len(unread)))
    return network(model(f"g (float[6,6] x) => ({outputs}) {{ {body} }}", w=(6, 6)))


@pytest.mark.parametrize("seeds", SEEDS, ids=str)
def test_no_combination_undercuts_the_bound(seeds: range) -> None:
    gaps = []
    for seed in seeds:
        net = random_network(seed)
        if math.prod(len(group.options) for group in groups_of(net, {})) > 150:
            continue
        for volume in ("part", "array"):
            found = explore(net, PES, volume=volume)
            assert found.exact
            for pes in PES:
                assert found.bounds[pes] <= found.best(pes).makespan, (
                    seed,
                    volume,
                    pes,
                )
                gaps.append(found.best(pes).makespan / found.bounds[pes] - 1)
    assert len(gaps) > 15
    assert sorted(gaps)[len(gaps) // 2] < 0.25


def perceptron() -> OperatorNetwork:
    body = "h = MatMul(x, v) r = Relu(h) y = MatMul(r, w)"
    graph = f"g (float[4,16] x) => (float[4,8] y) {{ {body} }}"
    return network(model(graph, v=(16, 32), w=(32, 8)))


@pytest.mark.parametrize(("grain", "limit"), [("expanded", 26), ("any", 120)])
def test_a_search_finds_what_is_best_of_a_small_network(grain: str, limit: int) -> None:
    whole = explore(perceptron(), [2, 8, 32], grain=grain)
    searched = explore(perceptron(), [2, 8, 32], grain=grain, limit=limit)
    assert whole.exact and not searched.exact and len(searched.points) <= limit
    for pes in (2, 8, 32):
        assert searched.best(pes).makespan == whole.best(pes).makespan
        assert searched.gap(pes) >= 0 == whole.gap(pes)


def test_granularity_is_a_choice_of_the_exploration() -> None:
    """What it finds is at least as good as with one granularity for all, and here better."""
    pes = [2, 4, 8, 16, 32]
    given = [
        explore(perceptron(), pes, grain=g) for g in ("operator", "loop", "expanded")
    ]
    found = explore(perceptron(), pes)
    least = [min(one.best(count).makespan for one in given) for count in pes]
    mine = [found.best(count).makespan for count in pes]
    assert all(a <= b for a, b in zip(mine, least, strict=True)) and mine != least


def test_a_search_ends_in_time_with_a_point_for_every_number_of_elements() -> None:
    found = explore(perceptron(), [2, 8, 32], limit=18, seconds=0)
    assert [p.pes for p in found.points] == [2, 8, 32]


def test_a_task_is_an_operator_or_an_index_of_its_outermost_loop() -> None:
    tasks = {
        grain: explore(perceptron(), [8], grain=grain).best(8).tasks
        for grain in ("operator", "loop", "expanded", "any")
    }
    assert tasks["operator"] == 3
    assert tasks["loop"] == 3 * 4
    with pytest.raises(
        InputError, match=r"no grain 'row'.*known: any, operator, loop, expanded"
    ):
        explore(perceptron(), [8], grain="row")


def test_what_is_no_number_and_what_was_not_explored_is_refused() -> None:
    for pes in ([], [0], [4, 2.5], [True]):
        with pytest.raises(InputError, match="processing elements"):
            explore(perceptron(), pes)
    for limits in ({"limit": 0}, {"seconds": -1}, {"seconds": math.nan}):
        with pytest.raises(InputError, match=r"a limit of \d+ evaluations and"):
            explore(perceptron(), [2], **limits)
    with pytest.raises(
        InputError, match=r"8 processing elements were not explored.*explored: 2"
    ):
        explore(perceptron(), [2], limit=1, seconds=0).best(8)


def test_the_front_has_all_that_nothing_beats() -> None:
    found = explore(perceptron(), [2, 8])
    front = found.front()
    for p in found.points:
        beaten = any(
            all(a <= b for a, b in zip(q.costs, p.costs, strict=True)) for q in front
        )
        assert beaten
    for p in front:
        better = (q for q in front if q is not p)
        assert not any(
            all(a <= b for a, b in zip(q.costs, p.costs, strict=True)) for q in better
        )


def evaluations(
    net: OperatorNetwork, path: Path, pes: list[int]
) -> tuple[Exploration, int]:
    """An exploration with a file, and how many lines the file has afterwards."""
    store = ResultStore(path)
    found = explore(net, pes, grain="expanded", methods=GANG, store=store)
    return found, len(path.read_text().splitlines()) - 1


def test_results_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    first, lines = evaluations(perceptron(), path, [2, 8])
    assert lines == len(first.points) == 18
    path.write_text(path.read_text()[:-30])
    again, lines = evaluations(perceptron(), path, [2, 8])
    assert lines == 18 and again.points == first.points
    more, lines = evaluations(perceptron(), path, [2, 8, 16])
    assert lines == 27 and set(first.points) < set(more.points)


@pytest.mark.parametrize("pes", [2, 8, 32])
def test_the_shortest_schedule_of_any_kind_is_the_best(pes: int) -> None:
    """Every combination by every method, but for list schedules that cannot be the shortest."""
    net = perceptron()
    found = explore(net, [pes], grain="expanded")
    every = {point.choice: found.compared(point) for point in found.points}
    shortest = min(cycles for made in every.values() for cycles in made.values())
    best = found.best(pes)
    assert best.makespan == shortest == every[best.choice][Method(best.method)]
    for point in found.points:
        assert point.makespan == min(
            every[point.choice][Method(m)] for m in point.tried
        )
        assert set(Method) - set(point.tried) <= set(LISTS)


def test_a_schedule_without_streams_is_drawn_where_it_is_the_best() -> None:
    """The drawing is the measured schedule: no element runs two tasks at once."""
    found = explore(perceptron(), [2, 8, 32], methods=[Method.BASELINE])
    for point in found.points:
        made = found.schedule(point)
        drawn = made.to_json()
        assert drawn["makespan"] == made.makespan == point.makespan
        bars = drawn["bars"]
        spans = [
            (element, bar["start"], bar["last"])
            for bar in bars
            for element in range(bar["element"], bar["element"] + bar["elements"])
        ]
        assert all(0 <= element < point.pes for element, _, _ in spans)
        ordered = sorted(spans)
        for (one, _, end), (other, start, _) in pairwise(ordered):
            assert one != other or start >= end
        graph = found.graph(point)
        assert sum(last - start for _, start, last in spans) == graph.total_work
        assert sum(bar["tasks"] for bar in bars) == graph.tasks
        assert max(bar["last"] for bar in bars) == point.makespan


def test_a_list_schedule_is_made_where_it_can_be_the_shortest() -> None:
    """Not of combinations with a task that takes as long as the best schedule."""
    found = explore(perceptron(), [32])
    tried = [set(map(str, LISTS)) <= set(point.tried) for point in found.points]
    assert any(tried) and not all(tried)
    least = found.best(32).makespan
    for point, listed in zip(found.points, tried, strict=True):
        assert listed or max(found.graph(point).work) >= least


def test_results_of_something_else_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    evaluations(perceptron(), path, [2])
    with pytest.raises(InputError, match="results of another model"):
        explore(
            perceptron(), [2], grain="expanded", volume="array", store=ResultStore(path)
        )
    path.write_text(path.read_text() + "{}\n")
    with pytest.raises(InputError, match="line 11 is not a result"):
        evaluations(perceptron(), path, [2])


@pytest.mark.slow
@pytest.mark.parametrize("volume", ["part", "array"])
def test_lenet_is_explored_to_the_end_and_its_bound_and_search_are_near(
    volume: str,
) -> None:
    net = network(lenet())
    pes = [8, 16, 32, 64, 128, 256, 512]
    whole = explore(net, pes, volume=volume, grain="expanded")
    assert whole.exact and len(whole.points) == 243 * 7
    searched = explore(net, pes, volume=volume, grain="expanded", limit=600)
    for count in pes:
        best = whole.best(count).makespan
        assert whole.bounds[count] <= best <= 1.1 * whole.bounds[count]
        assert best <= searched.best(count).makespan <= 1.02 * best
        assert searched.best(count).makespan <= (1 + searched.gap(count)) * best


@pytest.mark.slow
def test_an_encoder_layer_of_pytorch_is_explored_in_a_minute() -> None:
    torch = pytest.importorskip("torch")
    layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    graph = load(onnx.load_from_string(to_onnx(layer, (torch.zeros(1, 64, 256),))))
    begin = time.process_time()
    found = explore(network(graph), [8, 16, 32, 64, 128, 256, 512], seconds=40)
    assert time.process_time() - begin < 60
    assert all(found.gap(pes) < 0.5 for pes in found.bounds)
