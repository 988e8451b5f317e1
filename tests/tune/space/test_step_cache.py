"""Steps made of a kernel before are taken from a cache: the same schedules, in less time."""

import random

import pytest

from tilewright.base.dtypes import float32
from tilewright.base.errors import ScheduleError
from tilewright.expr.nodes import Buffer
from tilewright.loops.analysis import lemmas
from tilewright.loops.printer import show_kernel
from tilewright.operators import reduce_
from tilewright.schedule import Schedule
from tilewright.schedule.step_cache import StepCache, active
from tilewright.targets.registry import target
from tilewright.testing.random_kernels import plain
from tilewright.tune.space import SketchSpace


def product(n=32):
    a, b, c = (Buffer(name, (n, n), float32) for name in "abc")
    return [reduce_("product", c, (n,), "add", lambda i, j, k: a[i, k] * b[k, j])]


def space():
    made = product()
    return SketchSpace(
        target("cpu", "x86-64-v3", threads=1).sketches(plain(made), made, ())
    )


def test_a_step_is_made_once_of_one_kernel():
    kernel, cache = plain(product()), StepCache()
    made = []
    for _ in range(2):
        s = Schedule(kernel)
        with cache.used():
            names = s.split("product.i", 4)
            s.vectorize(names[1])
        made.append((s.kernel, names, s.trace))
    assert made[0][0] is made[1][0]
    assert made[0][1:] == made[1][1:]
    assert (cache.hits, cache.misses) == (2, 2)


def test_other_arguments_and_other_kernels_are_other_steps():
    kernel, cache = plain(product()), StepCache()
    with cache.used():
        kernels = []
        for start, factor in ((kernel, 4), (kernel, 8), (plain(product()), 4)):
            s = Schedule(start)
            s.split("product.i", factor)
            kernels.append(s.kernel)
    assert cache.hits == 0
    assert len({id(k) for k in kernels}) == 3
    assert show_kernel(kernels[0]) != show_kernel(kernels[1])


def test_a_refused_step_is_refused_again():
    s, cache = Schedule(plain(product())), StepCache()
    with cache.used():
        for _ in range(2):
            with pytest.raises(ScheduleError, match="loop-carried"):
                s.vectorize("product.k")
                s.parallel("product.k")
    assert not s.trace.steps or cache.hits == 0


def test_the_oldest_steps_are_forgotten():
    kernel, cache = plain(product()), StepCache(kept=2)
    with cache.used():
        for factor in (2, 4, 8, 2):
            Schedule(kernel).split("product.i", factor)
    assert (cache.hits, cache.misses) == (0, 4)


def test_a_cache_is_used_inside_only():
    cache = StepCache()
    assert active() is None
    with pytest.raises(ZeroDivisionError), cache.used():
        assert active() is cache
        _ = 1 / 0
    assert active() is None
    Schedule(plain(product())).split("product.i", 4)
    assert cache.misses == 0


def test_candidates_are_the_same_with_caches_and_without(monkeypatch):
    """Drawn in one space, whose cache has what others began with, and made anew in another, whose
    dependence questions are all answered anew."""
    cached, r = space(), random.Random(3)
    drawn = [cached.sample(r) for _ in range(6)]
    drawn += [cached.neighbor(c, r) for c in drawn]
    assert cached.steps.hits > 0 and lemmas._kept.cache_info().hits > 0
    monkeypatch.setattr(lemmas, "_kept", lemmas._kept.__wrapped__)
    for candidate in drawn:
        alone = space()
        with_cache, without = cached.schedule(candidate), alone.schedule(candidate)
        assert show_kernel(with_cache.schedule.kernel) == show_kernel(
            without.schedule.kernel
        )
        assert with_cache.schedule.trace == without.schedule.trace
        assert with_cache.parameters == without.parameters
