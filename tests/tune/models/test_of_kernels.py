"""Models on the product's own kernels: the table of them, the analytic one, loop trees."""

import random

import numpy as np
import pytest

from tilewright.base.dtypes import float32
from tilewright.base.errors import InputError
from tilewright.operators import Buffer, map_, reduce_
from tilewright.targets.registry import target
from tilewright.testing.random_kernels import plain, random_kernel
from tilewright.tune.base import Candidate, Measurement, Sample, Status, Task, Trial
from tilewright.tune.features import Facts, Fast, Flattened
from tilewright.tune.models import MODELS, Analytic, make
from tilewright.tune.models.configuration import Configuration
from tilewright.tune.models.loop_tree import COLUMNS, LoopTree
from tilewright.tune.models.transfer import grown

NUMBER = {name: n for n, name in enumerate(COLUMNS)}


def _product(n, m, k):
    x, w = Buffer("x", (n, k), float32), Buffer("w", (k, m), float32)
    y = Buffer("y", (n, m), float32)
    return [reduce_("mm", y, (k,), "add", lambda i, j, k: x[i, k] * w[k, j])]


def _points(count, size=32):
    computations = _product(size, size, size)
    cpu = target("cpu", "x86-64-v3", threads=1)
    sketch = cpu.sketches(plain(computations), computations, ())[0]
    r = random.Random(0)
    return [sketch.random(r) for _ in range(count)]


@pytest.fixture(scope="module")
def kernels():
    return [p.schedule.kernel for p in _points(24)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", MODELS)
def test_each_model_learns_and_is_kept(name, kernels, tmp_path):
    facts = Facts(cores=1)
    model, other = make(name, facts), make(name, facts)
    taken = np.random.default_rng(0).random(16) + 0.1
    samples = [Sample("a", k, s) for k, s in zip(kernels[:16], taken, strict=True)]
    model.fit(samples[:10])
    model.update(samples[10:])
    model.save(tmp_path / "m")
    other.load(tmp_path / "m")
    found = model.predict("a", kernels[16:])
    assert found.cost.shape == found.spread.shape == (8,)
    assert np.isfinite(found.cost).all()
    if name != "random":  # which goes on with other numbers
        kept = other.predict("a", kernels[16:])
        np.testing.assert_array_equal(kept.cost, found.cost)
        np.testing.assert_array_equal(kept.spread, found.spread)


def test_a_model_that_is_not_there():
    with pytest.raises(InputError, match=r"no cost model 'oracle'.*trees"):
        make("oracle", Facts())


def test_the_analytic_model_knows_cycles_without_samples(kernels):
    model = Analytic(Fast(Facts()), clock=2.0)
    found = model.predict("a", kernels)
    # 32 * 32 * 32 multiply-adds, 8 lanes twice a cycle, at 2 cycles per nanosecond.
    least = 32**3 / 16 / 2 * 1e-9
    assert (np.exp(found.cost) > 0.99 * least).all()
    assert np.exp(found.cost.min()) < 4 * least
    slower = Analytic(Fast(Facts()), clock=1.0).predict("a", kernels)
    np.testing.assert_allclose(slower.cost - found.cost, np.log(2))
    assert model.predict("a", []).cost.shape == (0,)


def test_the_analytic_model_sees_how_far_it_is_off(kernels):
    model = Analytic(Fast(Facts()))
    before = model.predict("a", kernels).cost
    factors = np.random.default_rng(0).permutation(np.linspace(2, 4, 24))
    taken = np.exp(before) * factors
    samples = [Sample("a", k, s) for k, s in zip(kernels, taken, strict=True)]
    model.fit([*samples, Sample("a", kernels[0], float("inf"))])
    after = model.predict("a", kernels)
    np.testing.assert_allclose(after.cost - before, np.log(np.median(factors)), 0.01)
    np.testing.assert_allclose(after.spread, np.std(np.log(factors)))
    model.fit([])
    np.testing.assert_array_equal(model.predict("a", kernels).cost, before)


def _tree(kernel):
    found = LoopTree().extract(kernel)
    assert found.dtype == np.float32 and found.shape[1] == len(COLUMNS)
    return found


def test_the_tree_of_a_product():
    # for i in 4: for j in 8: { y = 0;  for k in 16: y += x * w }
    tree = _tree(plain(_product(4, 8, 16)))
    trips = np.round(2 ** tree[:, NUMBER["trips"]] - 1).tolist()
    # The two statements, then k, j and i, inner ones first, and the root.
    assert trips == [1, 1, 16, 8, 4, 0]
    assert tree[:, 0].tolist() == [3, 1, 1, 1, 1, 0]
    of_k, of_j = tree[2], tree[3]

    def amount(row, name):
        return round(2 ** float(row[NUMBER[name]]) - 1)

    assert amount(of_k, "above") == 32 and amount(of_j, "above") == 4
    assert amount(of_k, "runs") == 16 and amount(of_j, "runs") == 8 * 17
    assert amount(of_k, "bytes") == 4 * (1 + 16 + 16)
    assert amount(of_j, "bytes") == 4 * (8 + 16 + 16 * 8)
    # Along k: y stays, x moves to a neighbor, w by a row of 32 bytes.
    steps = [
        amount(of_k, n) for n in ("invariant", "contiguous", "strided", "scattered")
    ]
    assert steps == [1, 1, 1, 0]
    assert amount(of_j, "statements") == 2 and amount(of_j, "reduces") == 1


def test_kinds_of_loops_are_told():
    x, y = Buffer("x", (64, 64), float32), Buffer("y", (64, 64), float32)
    computations = [map_("copy", y, lambda i, j: x[i, j])]
    cpu = target("cpu", "x86-64-v3", threads=4)
    sketch = cpu.sketches(plain(computations), computations, ())[0]
    tree = _tree(sketch.default().schedule.kernel)
    assert tree[:, NUMBER["is_vector"]].sum() >= 1
    plain_tree = _tree(plain(computations))
    assert plain_tree[:, NUMBER["is_vector"]].sum() == 0
    assert plain_tree[:, NUMBER["is_serial"]].sum() == 2


@pytest.mark.parametrize("seed", range(12))
def test_trees_of_random_kernels(seed):
    tree = _tree(random_kernel(random.Random(seed)))
    assert np.isfinite(tree).all()
    place = np.arange(len(tree)) + tree[:, 0]
    assert (tree[:-1, 0] >= 1).all() and tree[-1, 0] == 0 and (place < len(tree)).all()


def test_the_configuration_is_of_the_candidate():
    points = _points(6)
    candidates = {id(p.schedule.kernel): Candidate.of(p) for p in points}
    values = Flattened.fit(list(candidates.values()))
    features = Configuration(values, lambda kernel: candidates[id(kernel)])
    rows = [features.extract(p.schedule.kernel) for p in points]
    assert {r.shape for r in rows} == {(1, len(values.columns))}
    np.testing.assert_array_equal(
        np.concatenate(rows), values.extract([Candidate.of(p) for p in points])
    )


class _Refusing:
    """The schedules of a task: of one candidate by values n; 3 is refused."""

    def __init__(self, points):
        self.points = points

    def __call__(self, candidate):
        from tilewright.base.errors import ScheduleError

        if candidate.values["n"] == 3:
            raise ScheduleError("no")
        return self.points[candidate.values["n"]]


def _trial(n, seconds):
    status = Status.OK if seconds else Status.CRASH
    rounds = (seconds,) if seconds else ()
    return Trial(Candidate("s", {"n": n}), Measurement(status, rounds))


def test_a_task_that_grew_starts_from_what_was_fast_before():
    points = _points(8)
    space = None
    task = Task("big", "big", space, _Refusing(points), lambda point: b"")
    trials = [_trial(n, s) for n, s in ((0, 5.0), (1, 1.0), (2, 3.0), (3, 2.0))]
    trials += [_trial(4, 0.0), _trial(7, 4.0)]

    def nearest(c):  # 7 is not possible here, and 2 is next to it
        return (
            Candidate(c.sketch, {"n": min(c.values["n"], 2)})
            if c.values["n"] > 3
            else c
        )

    found = grown(trials, task, nearest)
    assert [c.values["n"] for c in found.seeds] == [1, 2, 0]
    assert [s.seconds for s in found.samples] == [1.0, 3.0, 5.0]
    assert found.samples[0].kernel is points[1].schedule.kernel
    assert {s.task for s in found.samples} == {"big (another size)"}
    assert len(grown(trials, task, nearest, count=2).seeds) == 2
