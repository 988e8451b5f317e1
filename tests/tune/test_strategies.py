"""What all strategies keep: the default first, nothing twice, all at last; and what each finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from math import inf, nan

import pytest

from tilewright.base.errors import InputError
from tilewright.testing.landscapes import KnowingModel, Landscape, bowl
from tilewright.tune.base import Candidate, Measurement, Status, Trial
from tilewright.tune.strategies import (
    STRATEGIES,
    TECHNIQUES,
    ConfidenceBounds,
    ProgramMaker,
    Proposer,
    Setup,
    strategy,
)
from tilewright.tune.strategies.annealing import diverse
from tilewright.tune.strategies.evolutionary import CHANGES, Evolutionary
from tilewright.tune.strategies.proposer import LEEWAY, ModelGuided

every = pytest.mark.parametrize("name", [*STRATEGIES, *TECHNIQUES])
GUIDED = [name for name, made in STRATEGIES.items() if made.guided]
guided = pytest.mark.parametrize("name", GUIDED)
MILLION = (10,) * 6


def made(name: str, land: Landscape, *, model: bool = True, **more: object) -> Proposer:
    programs = ProgramMaker(land.task())
    foresight = ConfidenceBounds(programs, KnowingModel(land) if model else None)
    return strategy(name, Setup(land, foresight, **more))  # type: ignore[arg-type]


def trial(land: Landscape, candidate: Candidate) -> Trial:
    if land.refused(land.place(candidate)):
        return Trial(candidate, Measurement(Status.REFUSED))
    return Trial(candidate, Measurement(Status.OK, (land.seconds(candidate),)))


def proposals(
    searching: Proposer, land: Landscape, batch: int = 8
) -> Iterator[list[Candidate]]:
    """Batches until the strategy is through, each answered."""
    while found := searching.propose(batch):
        yield found
        searching.tell([trial(land, c) for c in found])


def trials_to(
    name: str, land: Landscape, target: float, most: int = 1000, **more: object
) -> int:
    """How many trials a strategy needs until one takes at most `target`; `most` if it does not."""
    count = 0
    for batch in proposals(made(name, land, **more), land, 16):
        for candidate in batch:
            count += 1
            if land.seconds(candidate) <= target or count == most:
                return count
    raise AssertionError("the strategy is through without it")


@every
def test_the_default_comes_first_and_then_the_seeds(name: str) -> None:
    land = Landscape((5, 5, 5), bowl, start=(2, 3, 4))
    seeds = [land.candidate(p) for p in ((4, 4, 4), (0, 1, 0), (2, 3, 4))]
    batch = made(name, land, seeds=seeds).propose(4)
    assert [land.place(c) for c in batch[:3]] == [(2, 3, 4), (4, 4, 4), (0, 1, 0)]
    assert len(batch) == 4


@pytest.mark.covering(1)
@every
@pytest.mark.parametrize("batch", [1, 7])
def test_a_finite_space_is_exhausted_and_nothing_is_proposed_twice(
    name: str, batch: int
) -> None:
    land = Landscape((3, 2, 4), bowl)
    found = [c for some in proposals(made(name, land), land, batch) for c in some]
    assert len(found) == len(set(found)) == land.size


@every
def test_equal_seeds_and_answers_give_equal_proposals(name: str) -> None:
    land = Landscape(MILLION, bowl)
    runs = [
        list(islice(proposals(made(name, land, seed=seed), land), 3))
        for seed in (1, 1, 2)
    ]
    assert runs[0] == runs[1]
    assert name == "exhaustive" or runs[0] != runs[2]


@every
def test_a_space_where_all_is_refused_comes_to_an_end(name: str) -> None:
    land = Landscape((3, 3), bowl, refused=lambda place: True)
    found = [c for some in proposals(made(name, land), land) for c in some]
    assert len(found) == len(set(found)) <= land.size
    if name in GUIDED:
        assert found == []


@guided
def test_a_large_space_where_all_is_refused_is_given_up(name: str) -> None:
    land = Landscape(MILLION, bowl, refused=lambda place: True)
    searching = made(name, land)
    assert searching.propose(4) == []
    assert searching.setup.foresight is not None
    assert searching.setup.foresight.programs.made < 3000


@guided
def test_what_is_refused_is_not_proposed(name: str) -> None:
    land = Landscape((4, 5, 5), bowl, refused=lambda place: sum(place) % 3 == 1)
    found = [c for some in proposals(made(name, land), land) for c in some]
    allowed = [c for c in land if not land.refused(land.place(c))]
    assert set(found) == set(allowed)


@every
def test_what_others_measured_is_not_proposed(name: str) -> None:
    land = Landscape((3, 4), bowl)
    searching = made(name, land)
    others = list(land)[::2]
    searching.tell([trial(land, c) for c in others])
    found = [c for some in proposals(searching, land) for c in some]
    assert set(found) == set(land) - set(others)


@guided
def test_all_that_were_costed_can_be_chosen(name: str) -> None:
    """Behind the pool that is spread, the others in the order of their costs."""
    land = Landscape((6, 6, 6), bowl)
    searching = made(name, land)
    assert isinstance(searching, ModelGuided)
    searching.explore(60)
    ranked = list(searching.foresight.ranked())
    found = list(searching.chosen(2))
    spread = LEEWAY * 2
    assert len(ranked) > spread and found[spread:] == ranked[spread:]
    assert set(found[:spread]) == set(ranked[:spread])


@every
def test_trials_that_all_failed_do_not_end_a_search(name: str) -> None:
    land = Landscape((4, 4, 4), bowl)
    searching = made(name, land)
    found = []
    while batch := searching.propose(8):
        found += batch
        searching.tell([Trial(c, Measurement(Status.CRASH)) for c in batch])
    assert len(found) == land.size and searching.best(3) == []


@pytest.mark.parametrize(
    ("name", "most"),
    [
        pytest.param("evolutionary", 64, marks=pytest.mark.slow),
        pytest.param("annealing", 64, marks=pytest.mark.slow),
        ("tree", 64),
        pytest.param("mcts", 64, marks=pytest.mark.slow),
    ],
)
def test_with_a_perfect_model_the_best_of_a_million_is_found(
    name: str, most: int
) -> None:
    """By chance it takes half a million trials."""
    land = Landscape(MILLION, bowl)
    needed = [
        trials_to(name, land, 1.0, most + 1, seed=seed, effort=32) for seed in range(3)
    ]
    assert sorted(needed)[1] <= most


@pytest.mark.parametrize("name", ["bandit", "climb", "cooling", "breed"])
def test_without_a_model_more_is_found_than_by_chance(name: str) -> None:
    land = Landscape(MILLION, bowl)
    needed = [
        sorted(trials_to(of, land, 1.5, seed=seed) for seed in range(3))[1]
        for of in (name, "random")
    ]
    assert needed[0] < needed[1] / 2


@guided
def test_a_search_makes_no_more_schedules_than_its_effort(name: str) -> None:
    land = Landscape(MILLION, bowl)
    searching = made(name, land, effort=10)
    searching.tell([])
    searching.propose(1)
    foresight = searching.setup.foresight
    assert foresight is not None
    before = foresight.programs.made
    for batch in islice(proposals(searching, land, 20), 3):
        assert len(batch) == 20
    # Each round: the effort, what is drawn by chance, and the rollouts on their way.
    made_in_all = foresight.programs.made - before
    assert made_in_all <= 3 * 20 * 10 * 1.2


@guided
def test_some_of_a_batch_are_drawn_by_chance(name: str) -> None:
    """A model that is wrong about everything does not keep the best from being found."""
    land = Landscape((10, 10), bowl)
    best = min(land, key=land.seconds)
    misled = Landscape((10, 10), lambda place: -1 / bowl(place) + 2)
    programs = ProgramMaker(land.task())
    searching = strategy(
        name, Setup(land, ConfidenceBounds(programs, KnowingModel(misled)))
    )
    seen: list[Candidate] = []
    for batch in islice(proposals(searching, land, 10), 6):
        seen += batch
    chance = sum(land.seconds(c) < 1.6 for c in seen)
    assert chance >= 1 and len(set(seen)) == 60 and best in land


@guided
def test_candidates_that_are_the_same_program_are_measured_once(name: str) -> None:
    class Doubled(Landscape):
        """The last number changes nothing in the program."""

        def point(self, candidate: Candidate):  # type: ignore[no-untyped-def]
            made = super().point(candidate)
            flat = self._kernel((*self.place(candidate)[:-1], 0))
            made.schedule.kernel = flat
            return made

        def place(self, candidate: Candidate) -> tuple[int, ...]:
            return tuple(candidate.values.get(name, 0) for name in self.names)

    land = Doubled((4, 4, 6), bowl)
    found = [c for some in proposals(made(name, land), land) for c in some]
    programs = [land.place(c)[:-1] for c in found]
    assert len(programs) == len(set(programs)) == 16


@guided
def test_a_guided_strategy_needs_programs(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} needs a task whose programs can"):
        strategy(name, Setup(Landscape((2,), bowl)))


def test_names_are_checked() -> None:
    setup = Setup(Landscape((2,), bowl))
    with pytest.raises(InputError, match="no strategy 'ants'; take one of evolution"):
        strategy("ants", setup)
    with pytest.raises(
        InputError, match="technique pattern needs a space with known dec"
    ):
        strategy("pattern", setup)
    assert strategy("breed", setup).name == "breed"


@pytest.mark.parametrize("curiosity", [0.0, 1.0])
def test_a_model_that_is_unsure_makes_a_candidate_worth_a_look(
    curiosity: float,
) -> None:
    land = Landscape((2,), lambda place: 2.0 if place == (0,) else 1.9)

    class Unsure(KnowingModel):
        def predict(self, task, kernels):  # type: ignore[no-untyped-def]
            found = super().predict(task, kernels)
            found.spread[:] = [inf if c < 0.65 else 0.5 for c in found.cost]
            return found

    foresight = ConfidenceBounds(ProgramMaker(land.task()), Unsure(land), curiosity)
    slow, fast = foresight.costs(list(land))
    # The one that is slower by 5% may also be faster by half; a spread that is infinite says that
    # nothing is known, and no more.
    assert (slow < fast) == (curiosity > 0)


def test_refused_costs_are_infinite_and_predictions_are_in_seconds() -> None:
    land = Landscape((3, 3), bowl, refused=lambda place: place == (1, 1))
    model = KnowingModel(land)
    foresight = ConfidenceBounds(ProgramMaker(land.task()), model)
    costs = foresight.costs(list(land))
    assert [n for n, c in enumerate(costs) if c == inf] == [4]
    assert model.predicted == 8
    first = next(iter(land))
    assert foresight.predicted(first) == pytest.approx(land.seconds(first))
    assert foresight.predicted(land.candidate((1, 1))) is None
    assert model.predicted == 8  # remembered
    assert next(foresight.ranked()) == min(
        (c for c in land if land.place(c) != (1, 1)), key=land.seconds
    )


def _apart(
    land: Landscape, curiosity: float, measured: list[tuple[int, ...]]
) -> list[tuple[int, ...]]:
    """All places in the order in which they are proposed."""
    foresight = ConfidenceBounds(
        ProgramMaker(land.task()), KnowingModel(land), curiosity
    )
    known = [land.candidate(place) for place in measured]
    pool = [c for c in land if c not in known]
    return [land.place(c) for c in foresight.apart(pool, known)]


def test_a_batch_is_far_from_what_is_measured_and_from_itself() -> None:
    flat = Landscape((12,), lambda place: 1.0)
    order = _apart(flat, 1.0, [(0,)])
    assert sorted(order) == [(n,) for n in range(1, 12)]
    assert order[0] == (11,)  # the farthest from what is measured
    assert 2 <= order[1][0] <= 8  # and then between the two
    assert _apart(flat, 1.0, [(11,)])[0] == (0,)


def test_a_batch_is_by_cost_without_curiosity_or_where_costs_differ_by_more() -> None:
    steep = Landscape((12,), lambda place: 100.0 ** (12 - place[0]))
    rising = [(n,) for n in reversed(range(12))]
    assert _apart(steep, 0.0, []) == _apart(steep, 0.5, []) == rising


def test_a_batch_has_no_refused_ones_and_unpredicted_ones_last() -> None:
    land = Landscape((6,), bowl, refused=lambda place: place == (2,))

    class Blind(KnowingModel):
        def predict(self, task, kernels):  # type: ignore[no-untyped-def]
            found = super().predict(task, kernels)
            found.cost[:2] = [nan, inf]
            return found

    foresight = ConfidenceBounds(ProgramMaker(land.task()), Blind(land))
    order = [land.place(c) for c in foresight.apart(list(land), [])]
    assert set(order[:3]) == {(3,), (4,), (5,)}
    assert set(order[3:]) == {(0,), (1,)} and len(order) == 5
    assert list(foresight.apart([land.candidate((2,))], [])) == []


def test_a_batch_of_annealing_covers_many_values() -> None:
    pool = [Candidate("s", {"a": n // 4, "b": n % 4}) for n in range(16)]
    level = list(islice(diverse(pool, [1.0] * 16), 4))
    assert (
        {c.values["a"] for c in level}
        == {c.values["b"] for c in level}
        == set(range(4))
    )
    steep = list(diverse(pool, [float(n) for n in range(16)]))
    assert steep[0] == pool[0] and set(steep) == set(pool)
    # The next one is new in b only, and beats what is new in both, but dearer.
    assert steep[1] == pool[1]


def test_a_foresight_costs_the_best_again_when_the_model_has_learned() -> None:
    land = Landscape((10, 10), bowl)
    changing: list[Callable[[tuple[int, ...]], float]] = [bowl]
    turned = Landscape((10, 10), lambda place: changing[0](place))
    foresight = ConfidenceBounds(ProgramMaker(land.task()), KnowingModel(turned))
    foresight.costs(list(land))
    best = next(foresight.ranked())
    changing[0] = lambda place: 10 - bowl(place)
    assert next(foresight.ranked()) == best
    foresight.learned()
    assert list(foresight.ranked())[-1] == best


def test_an_evolution_starts_near_what_was_measured() -> None:
    """With a space of a million, what is drawn has most of its numbers elsewhere."""
    land = Landscape(MILLION, bowl, start=(9,) * 6)
    evolution = Evolutionary(made("random", land).setup)
    first = land.candidate((9, 9, 9, 0, 0, 0))
    evolution.tell([trial(land, first)])

    def changed(candidate: Candidate) -> int:
        pairs = zip(land.place(candidate), land.place(first), strict=True)
        return sum(a != b for a, b in pairs)

    found = [changed(c) for c in evolution._population(41)]
    assert len(found) == 41 and found[0] == 0
    assert max(found[:15]) <= CHANGES < 4 <= sum(found[15:]) / 26
    assert 10 < sum(n > 0 for n in found[1:29])
    other = Evolutionary(made("random", land).setup)
    assert min(map(changed, other._population(8))) > 0  # nothing was measured
