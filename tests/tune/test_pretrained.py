"""What is chosen without measuring: only what is surely faster, within a budget."""

import dataclasses
import itertools
import random

import numpy as np
import pytest
from onnx import parser

from tilewright.base.errors import InputError, ScheduleError
from tilewright.driver.tasks import tasks
from tilewright.tune.base import Candidate, Prediction, Task
from tilewright.tune.features import Facts, Fast
from tilewright.tune.models import trees
from tilewright.tune.models.analytic import estimates
from tilewright.tune.models.forest import TreeEnsemble
from tilewright.tune.models.objectives import LOG_SECONDS, ORDER
from tilewright.tune.models.pretrained import Pretrained, read
from tilewright.tune.models.programs import Examples, ProgramRows
from tilewright.tune.pretrained import CHANGES, choose

DEFAULT = 50


class Line:
    """Numbers from 0 to 99; a neighbor is at most 15 away."""

    size = 100

    def default(self):
        return Candidate("line", {"n": DEFAULT})

    def neighbor(self, candidate, random):
        n = candidate.values["n"] + random.randint(-15, 15)
        return Candidate("line", {"n": min(99, max(0, n))})


def task(refused=lambda n: False, clock=None, takes=0.0):
    """Its programs are their numbers. takes: seconds of a schedule, by this clock."""

    def schedule(candidate):
        if clock is not None:
            clock.now += takes
        if refused(candidate.values["n"]):
            raise ScheduleError("not this one")
        return candidate.values["n"]

    return Task("line", "line", Line(), schedule, bytes, program=lambda n: n)


class Known:
    """A model of numbers. cost, spread: by the number. takes: seconds for each, by the clock."""

    absolute = True

    def __init__(self, cost, spread=lambda n: 0.0, clock=None, takes=0.0):
        self.cost, self.spread = cost, spread
        self.clock, self.takes = clock, takes
        self.asked = []

    def predict(self, task, kernels):
        self.asked += kernels
        if self.clock is not None:
            self.clock.now += self.takes * len(kernels)
        cost = [self.cost(n) for n in kernels]
        spread = [self.spread(n) for n in kernels]
        return Prediction(np.array(cost, float), np.array(spread, float))


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_what_is_surely_faster_is_taken():
    model = Known(lambda n: n / 10)
    found = choose(task(), model, 1e9)
    tried = model.asked[1:]
    assert found.point == min(tried) < DEFAULT
    assert found.gain == pytest.approx(np.exp((DEFAULT - found.point) / 10))
    assert model.asked[0] == DEFAULT
    assert len(tried) == len(set(tried)) == found.tried == 32
    assert max(abs(n - DEFAULT) for n in tried) <= 15 * CHANGES


@pytest.mark.parametrize("spread", [5.0, np.inf])
def test_what_is_not_sure_is_left_to_the_rules(spread):
    found = choose(task(), Known(lambda n: n / 10, lambda n: spread), 1e9)
    assert found.point is None
    assert found.gain > 1
    assert "reliably" in found.reason


def test_the_margin_counts_spreads():
    """All others are predicted 1 faster, give or take 0.5."""
    model = Known(lambda n: float(n == DEFAULT), lambda n: 0.5)
    assert choose(task(), model, 1e9, margin=1.9, least=0).point is not None
    assert choose(task(), model, 1e9, margin=2.0, least=0).point is None
    unknown = Known(lambda n: float(n == DEFAULT), lambda n: np.inf)
    assert choose(task(), unknown, 1e9, margin=0).point is not None


def test_a_small_gain_is_not_enough_however_sure():
    model = Known(lambda n: float(n == DEFAULT))
    assert choose(task(), model, 1e9, least=0.9).point is not None
    assert choose(task(), model, 1e9, least=1.0).point is None


def test_the_surest_is_taken_and_not_the_one_of_least_cost():
    model = Known(lambda n: n / 10, lambda n: 100.0 if n < 45 else 0.0)
    assert 45 <= choose(task(), model, 1e9).point < DEFAULT


def test_the_best_is_the_default():
    assert choose(task(), Known(lambda n: abs(n - DEFAULT)), 1e9).point is None


def test_what_primitives_refuse_is_not_a_candidate():
    found = choose(task(lambda n: n < 45), Known(lambda n: n), 1e9)
    assert 45 <= found.point < DEFAULT
    nothing = choose(task(lambda n: n != DEFAULT), Known(lambda n: n), 1e9)
    assert nothing.point is None
    assert nothing.tried == 0


@pytest.mark.parametrize("budget", [0.0, 0.5, 3.0, 10.0, 20.0])
def test_the_budget_is_kept(budget):
    """A schedule takes 0.25 and a prediction 0.5; the default is made in any case."""
    clock = Clock()
    model = Known(lambda n: n / 10, clock=clock, takes=0.5)
    found = choose(task(clock=clock, takes=0.25), model, budget, clock=clock)
    assert clock.now <= max(budget, 0.75)
    assert found.tried == min(32, max(0, int((budget - 0.75) / 0.75)))
    assert (found.point is None) == (found.tried == 0)


def test_a_slow_schedule_ends_it():
    """None is begun for which there is no time if it takes as long as the longest."""
    clock = Clock()
    durations = itertools.chain([1.0, 1.0, 6.0], itertools.repeat(1.0))

    def schedule(candidate):
        clock.now += next(durations)
        return candidate.values["n"]

    slow = dataclasses.replace(task(), schedule=schedule)
    found = choose(slow, Known(lambda n: n), 12.0, clock=clock)
    assert found.tried == 2
    assert clock.now == 8.0


def test_the_same_is_chosen_again():
    model = Known(lambda n: (n * 37) % 101)
    first, again = choose(task(), model, 1e9), choose(task(), model, 1e9)
    assert first == again
    asked = model.asked[1:33]
    model.asked.clear()
    choose(task(), model, 1e9, seed=1)
    assert model.asked[1:] != asked


@pytest.mark.parametrize(
    "wrong", [{"budget_seconds": -1}, {"margin": -1}, {"least": -1}]
)
def test_wrong_numbers_are_refused(wrong):
    given = {"budget_seconds": 1, **wrong}
    with pytest.raises(InputError, match="a budget of"):
        choose(task(), Known(lambda n: n), **given)


# ----------------------------------------------------------------------- on a kernel that is real


@pytest.fixture(scope="module")
def product():
    text = (
        '<ir_version: 8, opset_import: ["" : 17]>'
        "g (float[24,40] a, float[40,36] b) => (float[24,36] y) { y = MatMul(a, b) }"
    )
    (only,) = tasks(parser.parse_model(text), threads=1, mcpu="x86-64-v3")
    return only


@pytest.fixture(scope="module")
def rows(product):
    """The features of random schedules of it."""
    r = random.Random(0)
    points = [product.schedule(product.space.sample(r)) for _ in range(40)]
    return Fast(Facts(cores=1)).extract_all([product.program(p) for p in points])


def trained(rows, objective="regression"):
    """Taught that programs are as fast as their tiles have registers, and no more."""
    features = Fast(Facts(cores=1))
    column = [c.name for c in features.columns].index("tile_accumulators")
    seconds = np.exp2(-rows[:, column].astype(float))
    count = len(rows)
    programs = ProgramRows(rows, np.arange(1, count + 1))
    learner = trees(objective, members=2)
    learner.fit(Examples(programs, np.zeros(count, int), seconds, np.zeros(count)))
    members = [TreeEnsemble.of(m) for m in learner.state()["members"]]
    card = {"tasks": 1}
    return Pretrained(members, learner.unit, False, card, features.facts), learner


def test_a_real_kernel_is_scheduled_as_the_model_says(product, rows):
    model, _ = trained(rows)
    found = choose(product, model, 1e9, margin=0.5, least=0)
    default = product.schedule(product.space.default())
    kernels = [product.program(default), product.program(found.point)]
    cost = model.predict(product.key, kernels).cost
    assert cost[1] < cost[0]


def test_it_is_kept_and_says_what_its_learner_says(rows, tmp_path):
    model, learner = trained(rows)
    wanted = learner.predict(ProgramRows(rows, np.arange(1, len(rows) + 1)))
    model.save(tmp_path / "m")
    again = read(tmp_path / "m", model.facts)
    for one in (model, again):
        found = one.judge(rows)
        np.testing.assert_allclose(found.cost, wanted.cost, atol=1e-4)
        np.testing.assert_allclose(found.spread, wanted.spread, atol=1e-4)
    assert again.card == {"tasks": 1}
    assert again.unit == LOG_SECONDS
    assert again.absolute


def test_a_prior_is_added(rows):
    plain, _ = trained(rows)
    with_prior = dataclasses.replace(plain, prior=True)
    more = with_prior.judge(rows).cost - plain.judge(rows).cost
    np.testing.assert_allclose(more, estimates(rows))
    by_rank, _ = trained(rows, "rank")
    assert not by_rank.absolute
    assert by_rank.unit == ORDER


@pytest.mark.parametrize("prior", [False, True])
def test_each_member_compares_with_the_default_for_itself(rows, prior):
    plain, _ = trained(rows)
    model = dataclasses.replace(plain, prior=prior)
    found = model.beside(rows[0], rows)
    single = [
        dataclasses.replace(model, members=[m]).judge(rows).cost for m in model.members
    ]
    more = np.stack([cost - cost[0] for cost in single])
    np.testing.assert_allclose(found.cost, more.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(found.spread, more.std(axis=0), atol=1e-6)
    assert found.cost[0] == found.spread[0] == 0


def test_another_version_of_the_features_is_refused(rows, tmp_path, monkeypatch):
    model, _ = trained(rows)
    model.save(tmp_path / "m")
    monkeypatch.setattr(Fast, "version", Fast.version + 1)
    with pytest.raises(InputError, match="version"):
        read(tmp_path / "m")
    (tmp_path / "other").write_text("{}")
    with pytest.raises(InputError, match="not a cost model file"):
        read(tmp_path / "other")
