"""Halide's network: its terms by hand, its gradient by differences, what it learns."""

import numpy as np
import pytest

from tests.tune.models.synthetic import accuracy
from tilewright.base.errors import InputError
from tilewright.tune.models import halide_net
from tilewright.tune.models.halide_costs import SCHEDULE, columns, factors
from tilewright.tune.models.halide_net import HalideNet, StageBatch
from tilewright.tune.models.programs import Examples, ProgramRows

NUMBER = {name: n for n, name in enumerate(SCHEDULE)}


def _schedule(**given):
    row = np.zeros((1, len(SCHEDULE)))
    for name, value in given.items():
        row[0, NUMBER[name]] = value
    return row


def _factors(last=False, cores=4, **given):
    found = factors(_schedule(**given), np.array([last]), cores)[0]
    return {k: v for k, v in enumerate(found) if v}


def test_schedule_features_are_those_of_the_feature_set():
    from tilewright.tune.features import Halide, names

    schedule, others = columns(names(Halide()))
    assert (len(schedule), len(others)) == (39, 40 * 7)


def test_columns_may_stand_in_any_order_but_not_be_missing():
    schedule, others = columns(["x", *reversed(SCHEDULE), "y"])
    assert schedule.tolist() == list(range(39, 0, -1))
    assert others.tolist() == [0, 40]
    with pytest.raises(InputError, match=r"lack num_vectors.*schedule features"):
        columns([name for name in SCHEDULE if name != "num_vectors"])


def test_compute_waits_for_idle_cores():
    # 6 tasks on 4 cores take two rounds: 2 / 1.5 of the time.
    given = {"vector_size": 8, "num_vectors": 30, "num_scalars": 9}
    found = _factors(inner_parallelism=3, outer_parallelism=2, **given)
    assert found[0] == pytest.approx(8 * 30 * 2 / 1.5)
    assert found[1] == pytest.approx(9 * 2 / 1.5)
    inlined = _factors(inlined_calls=1, **given)
    # One task for 4 cores: a quarter of a round, which counts as one.
    assert inlined[2] == 8 * 30 and inlined[3] == 9
    assert 0 not in inlined and 1 not in inlined


def test_loads():
    reads = {
        "unique_lines_read_per_realization": 2,
        "unique_bytes_read_per_realization": 3,
        "scalar_loads_per_vector": 5,
        "scalar_loads_per_scalar": 7,
        "vector_loads_per_vector": 11,
        "unique_bytes_read_per_vector": 13,
        "unique_lines_read_per_vector": 17,
        "unique_bytes_read_per_task": 19,
        "unique_lines_read_per_task": 23,
    }
    runs = {"num_realizations": 100, "num_vectors": 1000, "num_scalars": 10}
    found = _factors(inner_parallelism=4, outer_parallelism=1, **reads, **runs)
    loads = [found[k] for k in range(5, 16)]
    by_hand = [200, 300, 5000, 70, 11000, 130, 13000, 170, 17000, 4 * 19, 4 * 23]
    assert loads == by_hand


def test_stores_count_twice_and_by_who_reads_them():
    written = {
        "num_realizations": 3,
        "inner_parallelism": 1,
        "outer_parallelism": 1,
        "bytes_at_task": 640,
        "innermost_bytes_at_task": 64,
        "bytes_at_realization": 100,
        "bytes_at_production": 7,
    }
    lines, bytes_ = 2 * 3 * 640 / 64, 2 * 3 * 100
    inside = _factors(**written)
    assert inside[18] == lines and inside[21] == bytes_ and 17 not in inside
    output = _factors(last=True, **written)
    assert output[17] == lines and output[20] == bytes_ and 18 not in output
    shared = _factors(**written | {"inner_parallelism": 2}, num_vectors=50)
    assert shared[16] == 2 * lines and shared[19] == bytes_
    assert shared[22] == 2 * 50 / 64
    assert inside[23] == 2 * 7 * min(1, 4096 / 64)
    assert shared[23] == 2 * 7 * 2 * 2


def test_realizations_threads_and_the_working_set():
    found = _factors(
        num_realizations=5, num_productions=7, inner_parallelism=4, working_set=9
    )
    assert (found[24], found[25], found[26], found[27]) == (5, 7, 21, 9)


def _random(count, random):
    """Programs of one to three stages with random features."""
    sizes = random.integers(1, 4, count)
    rows = [random.random((n, 2 + len(SCHEDULE))) * 9 for n in sizes]
    return ProgramRows.of([r.astype(np.float32) for r in rows])


def test_the_gradient_is_that_of_the_loss():
    random = np.random.default_rng(0)
    programs = _random(6, random)
    rows = programs.rows.astype(float)
    last = np.zeros(len(rows), bool)
    last[programs.ends - 1] = True
    schedule = rows[:, 2:]
    stages = StageBatch(
        programs, rows[:, :2], np.log1p(schedule), factors(schedule, last, 2)
    )
    values = halide_net.initial(2, random)
    # Some coefficients below 0, so that the penalty and the bend at 0 are met.
    values["b"] = random.standard_normal(len(values["b"]))
    taken, _ = halide_net.forward(values, stages)
    seconds = taken * random.uniform(0.5, 2, 6)
    fastest = np.full(6, seconds.min())

    def loss():
        found, kept = halide_net.forward(values, stages)
        total, by_taken = halide_net.loss(found, fastest, seconds)
        return total + halide_net.penalty(kept), by_taken, kept

    _, by_taken, kept = loss()
    assert (kept["a"] < 0).any()
    gradient = halide_net.backward(values, stages, kept, by_taken)
    for name, value in values.items():
        for at in np.ndindex(value.shape):
            before, step = value[at], 1e-6
            value[at] = before + step
            more = loss()[0]
            value[at] = before - step
            less = loss()[0]
            value[at] = before
            slope = (more - less) / (2 * step)
            assert slope == pytest.approx(gradient[name][at], rel=1e-3, abs=1e-7), name


def test_a_failed_program_has_no_throughput():
    total, slope = halide_net.loss(
        np.array([2.0, 2.0]), np.ones(2), np.array([2.0, np.inf])
    )
    assert total == pytest.approx(0.25)
    assert slope[0] == 0 and slope[1] < 0  # slower is better for what failed


def _of_vectors_and_scalars(count):
    random = np.random.default_rng(3)
    rows = np.zeros((count, 2 + len(SCHEDULE)), np.float32)
    vectors, scalars = random.integers(100, 1000, (2, count))
    rows[:, 2 + NUMBER["num_vectors"]] = vectors
    rows[:, 2 + NUMBER["num_scalars"]] = scalars
    rows[:, 2 + NUMBER["vector_size"]] = 1
    seconds = 1e-9 * (vectors + 30.0 * scalars)
    programs = ProgramRows(rows, np.arange(1, count + 1))
    return Examples(programs, np.zeros(count, np.int64), seconds, np.zeros(count))


def test_coefficients_are_learned():
    of = _of_vectors_and_scalars(300)
    known, other = of.take(np.arange(200)), of.take(np.arange(200, 300))
    names = ["a", "b", *SCHEDULE]
    guess, learner = HalideNet(names, steps=0), HalideNet(names, steps=150)
    guess.fit(known)
    learner.fit(known)
    before = accuracy(guess.costs(other.programs), other)
    after = accuracy(learner.costs(other.programs), other)
    assert before < 0.85 < 0.93 < after
