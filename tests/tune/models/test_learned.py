"""Features and a learner as one model: fit, update, priors, files."""

import json

import numpy as np
import pytest

from tests.tune.models.synthetic import rows, seconds
from tilewright.base.errors import InputError, UnsupportedError
from tilewright.loops.nodes import Block, Kernel
from tilewright.tune.base import Prediction, Sample
from tilewright.tune.models import trees
from tilewright.tune.models.baselines import BlackBox, RandomGuess
from tilewright.tune.models.learned import LearnedModel
from tilewright.tune.models.learner import Ensemble
from tilewright.tune.models.objectives import LOG_SECONDS, OBJECTIVES
from tilewright.tune.models.transfer import fading, transferred
from tilewright.tune.models.trees import Trees

INF = float("inf")


class Numbered:
    """Features of a kernel by the number that is its name."""

    name = "numbered"

    def __init__(self, version=1):
        self.version = version
        self.asked = 0

    def extract(self, kernel):
        self.asked += 1
        return rows(np.random.default_rng(int(kernel.name)))


def kernels(count, start=0):
    return [Kernel(str(start + n), (), (), Block(())) for n in range(count)]


def samples(count, start=0, task="a", times=1.0, machine=""):
    features = Numbered()
    return [
        Sample(task, k, times * seconds(features.extract(k)), machine)
        for k in kernels(count, start)
    ]


def small(objective="rank", members=2):
    def member(seed):
        return Trees(OBJECTIVES[objective], seed, 30)

    return Ensemble(member, members)


def model(objective="rank", **more):
    return LearnedModel(Numbered(), small(objective), **more)


def same(a, b):
    np.testing.assert_array_equal(a.cost, b.cost)
    np.testing.assert_array_equal(a.spread, b.spread)


def _order(model, task="a", start=500):
    """How well the order of 60 programs that were not seen is known: 1, 0 or between."""
    given = kernels(60, start)
    cost = model.predict(task, given).cost
    taken = np.array([seconds(Numbered().extract(k)) for k in given])
    one, other = np.triu_indices(60, 1)
    return np.mean(
        np.sign(cost[one] - cost[other]) == np.sign(taken[one] - taken[other])
    )


def test_an_update_is_a_fit_on_everything():
    whole, parts = model(), model()
    whole.fit(samples(60))
    parts.fit(samples(20))
    parts.update(samples(40, 20))
    same(whole.predict("a", kernels(9, 100)), parts.predict("a", kernels(9, 100)))
    # Each kernel is read once.
    assert parts._features.asked == 60 + 9


def test_a_fit_forgets_what_was_before():
    once, again = model(), model()
    once.fit(samples(30))
    again.fit(samples(50, 200, times=-1 * -3.0))
    again.fit(samples(30))
    same(once.predict("a", kernels(9, 100)), again.predict("a", kernels(9, 100)))


@pytest.mark.parametrize("known", [[], [INF], [INF, INF]])
def test_without_a_success_nothing_is_known(known):
    m = model()
    m.fit([Sample("a", k, s) for k, s in zip(kernels(len(known)), known, strict=True)])
    found = m.predict("a", kernels(3))
    assert found.cost.tolist() == [0, 0, 0] and np.isinf(found.spread).all()
    assert m.predict("a", []).cost.shape == (0,)


def test_tasks_of_one_name_on_two_machines_are_not_compared():
    # What is fast was measured on the slow machine: compared with the rest it looks slow.
    every = samples(160)
    half = np.median([s.seconds for s in every])
    given = [
        Sample(s.task, s.kernel, 1e3 * s.seconds, "slow") if s.seconds < half else s
        for s in every
    ]
    m = model()
    m.fit(given)
    assert _order(m) > 0.65


def test_samples_of_another_machine_are_read_by_its_features():
    other = Numbered()
    m = model(others={"far": other})
    m.fit(samples(5) + samples(3, machine="far"))
    assert (m._features.asked, other.asked) == (5, 3)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_file_predicts_the_same_bits(objective, tmp_path):
    m, other = model(objective), model(objective)
    m.fit(samples(40))
    m.save(tmp_path / "m")
    other.load(tmp_path / "m")
    same(m.predict("a", kernels(9, 100)), other.predict("a", kernels(9, 100)))
    other.save(tmp_path / "again")
    assert (tmp_path / "m").read_bytes() == (tmp_path / "again").read_bytes()


def test_a_model_that_learned_nothing_has_a_file_too(tmp_path):
    m = model()
    m.save(tmp_path / "m")
    m.load(tmp_path / "m")
    assert np.isinf(m.predict("a", kernels(2)).spread).all()


def test_a_loaded_model_learns_what_it_does_not_explain(tmp_path):
    first = model("regression")
    first.fit(samples(80))
    first.save(tmp_path / "m")
    loaded, twice = model("regression"), model("regression")
    loaded.load(tmp_path / "m")
    before = loaded.predict("a", kernels(9, 100)).cost
    # On a machine three times as slow: the order stays, and the rest is learned.
    loaded.update(samples(30, 200, times=3.0))
    after = loaded.predict("a", kernels(9, 100)).cost
    np.testing.assert_allclose(after - before, np.log(3), atol=0.25)
    assert _order(loaded) > 0.85
    loaded.save(tmp_path / "more")
    twice.load(tmp_path / "more")
    same(loaded.predict("a", kernels(9)), twice.predict("a", kernels(9)))


def _damaged(text, kind):
    if kind == "cut":
        return text[: len(text) // 2]
    if kind == "no JSON":
        return "tree\n" + text
    if kind == "a list":
        return "[1, 2]"
    whole = json.loads(text)
    if kind == "a number":
        place = whole["content"].index("0.")
        content = whole["content"]
        whole["content"] = content[:place] + "9." + content[place + 2 :]
    elif kind == "no content":
        del whole["content"]
    else:
        whole[kind] = "other"
    return json.dumps(whole)


@pytest.mark.parametrize(
    "kind",
    [
        "cut",
        "no JSON",
        "a list",
        "a number",
        "no content",
        "format",
        "version",
        "digest",
    ],
)
def test_a_damaged_file_is_refused(kind, tmp_path):
    m = model()
    m.fit(samples(20))
    path = tmp_path / "m"
    m.save(path)
    path.write_text(_damaged(path.read_text(), kind))
    before = m.predict("a", kernels(5))
    with pytest.raises(
        InputError, match=r"cannot be loaded.*Fit it again|fit it again"
    ):
        m.load(path)
    same(m.predict("a", kernels(5)), before)


def test_files_that_are_not_there_or_no_text_are_refused(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        model().load(tmp_path / "none")
    (tmp_path / "bytes").write_bytes(bytes(range(256)))
    with pytest.raises(InputError, match="not a cost model file"):
        model().load(tmp_path / "bytes")


def test_a_file_of_another_model_or_other_features_is_refused(tmp_path):
    m = model()
    m.fit(samples(20))
    m.save(tmp_path / "m")
    with pytest.raises(InputError, match=r"it is for '2 x trees \(rank\) of numbered'"):
        model("regression").load(tmp_path / "m")
    newer = LearnedModel(Numbered(version=2), small())
    with pytest.raises(InputError, match=r"version 1 of the features.* not 2"):
        newer.load(tmp_path / "m")


class Known:
    """A prior that knows the logarithm of seconds, times a factor."""

    name = "known"
    unit = LOG_SECONDS

    def __init__(self, factor=1.0, spread=0.5):
        self.factor = factor
        self.spread = spread

    def predict(self, task, kernels):
        taken = [seconds(Numbered().extract(k)) for k in kernels]
        cost = self.factor * np.log(taken)
        return Prediction(cost, np.full(len(kernels), self.spread))

    def state(self):
        return {"factor": self.factor}

    def restore(self, state):
        self.factor = state["factor"]


def test_a_prior_speaks_until_something_is_learned():
    m = model("regression", prior=Known())
    same(m.predict("a", kernels(5)), Known().predict("a", kernels(5)))


def test_a_prior_is_part_of_the_cost_and_of_the_spread():
    m = model("regression", prior=Known(spread=0.5))
    m.fit(samples(40))
    found = m.predict("a", kernels(20, 100))
    np.testing.assert_allclose(found.cost, Known().predict("a", kernels(20, 100)).cost)
    assert (found.spread >= 0.5).all()


def test_a_wrong_prior_is_corrected():
    m = model("rank", prior=Known(factor=-0.2))
    m.fit(samples(150))
    assert _order(m) > 0.75


def test_the_state_of_a_prior_is_kept(tmp_path):
    m, other = (model("regression", prior=Known(f)) for f in (0.5, 1.0))
    m.fit(samples(30))
    m.save(tmp_path / "m")
    other.load(tmp_path / "m")
    same(m.predict("a", kernels(9)), other.predict("a", kernels(9)))


def test_a_prior_in_another_unit_is_refused():
    with pytest.raises(
        InputError, match=r"black box predicts order, but .* log seconds"
    ):
        model("regression", prior=BlackBox())
    with pytest.raises(
        InputError, match=r"known predicts log seconds, but .* throughput"
    ):
        model("throughput", prior=Known())


def test_others_count_less_with_each_sample_and_then_no_more():
    assert (fading(0), fading(64), fading(128)) == (1, 0.5, 0.25)
    assert fading(276) > 0.05 and fading(277) == 0


def test_transfer_begins_with_what_others_taught():
    base = model()
    base.fit(samples(150, task="other", times=7.0))
    new = transferred(base, Numbered(), small())
    alone = model()
    for m in (new, alone):
        m.fit(samples(6, 300))
    assert _order(new) > 0.8 > _order(alone)


def test_who_has_enough_samples_does_not_ask_others():
    class Silent(Known):
        asked = 0

        def predict(self, task, kernels):
            self.asked += len(kernels)
            return super().predict(task, kernels)

    others = Silent(factor=-100.0)
    new = transferred(others, Numbered(), small())
    new.fit(samples(280, 1000))
    others.asked = 0
    assert _order(new) > 0.8
    assert others.asked == 0


def test_a_weight_is_of_the_samples_of_the_task():
    new = transferred(Known(), Numbered(), small("regression"))
    new.fit(samples(64) + samples(10, 100, task="b"))
    given = kernels(3, 400)
    a, b, c = (new.predict(task, given).cost for task in "abc")
    known = Known().predict("", given).cost
    np.testing.assert_allclose(b - a, (2 ** (-10 / 64) - 0.5) * known)
    np.testing.assert_allclose(c - a, 0.5 * known)


def test_the_black_box_knows_nothing_and_a_guess_is_of_its_seed(tmp_path):
    found = BlackBox().predict("a", kernels(3))
    assert found.cost.tolist() == [0, 0, 0] and np.isinf(found.spread).all()
    one, other, third = (
        RandomGuess(s).predict("a", kernels(3)).cost for s in (0, 0, 1)
    )
    assert one.tolist() == other.tolist() != third.tolist()
    BlackBox().save(tmp_path / "m")
    BlackBox().load(tmp_path / "m")
    with pytest.raises(InputError, match="it is for 'black box', not 'random'"):
        RandomGuess().load(tmp_path / "m")


def test_trees_without_lightgbm_name_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "lightgbm", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'tilewright\[tune\]'"):
        model().fit(samples(5))
    assert trees("rank").name == "4 x trees (rank)"  # making one needs nothing
