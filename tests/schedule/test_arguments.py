"""Arguments of the wrong type are refused by every primitive, before it looks at the program."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import numpy as np
import pytest

from tilewright.base.dtypes import float32
from tilewright.base.errors import ScheduleError
from tilewright.loops.lower import lower
from tilewright.operators import Buffer, map_
from tilewright.schedule import Schedule, Trace
from tilewright.schedule.registry import PRIMITIVES
from tilewright.schedule.step_cache import StepCache


def schedule() -> Schedule:
    a, b = Buffer("a", (8, 8), float32), Buffer("b", (8, 8), float32)
    c = map_("m", b, lambda i, j: a[i, j] + 1.0)
    return Schedule(lower("k", [c], params=[a, b], outputs=[b]))


WRONG: list[tuple[str, tuple[Any, ...], str]] = [
    ("split", ("m.i", "m.j"), "kernel k|k: split: factor is 'm.j', not an integer"),
    ("split", ("m.i", 2.5), "factor is 2.5, not an integer"),
    ("split", ("m.i", True), "factor is True, not an integer"),
    ("split", (3, 4), "loop is 3, not a name"),
    ("reorder", ("m.i", ["m.j"]), r"reorder: \w+ is \['m.j'\], not a name"),
    ("vectorize", (None,), "vectorize: loop is None, not a name"),
    ("fuse", ("m.i", 2.5), "not a name"),
    ("cache_read", (object(),), "cache_read: .* not a name"),
    ("partition_loop", ("m.i", {}), "partition_loop: .* is {}, not an integer"),
    ("pad", ("m.i", "m.j"), "pad: .* not an integer"),
]


@pytest.mark.parametrize(("verb", "args", "message"), WRONG, ids=range(len(WRONG)))
def test_an_argument_of_another_type(
    verb: str, args: tuple[Any, ...], message: str
) -> None:
    s = schedule()
    with pytest.raises(ScheduleError, match=message) as caught:
        getattr(s, verb)(*args)
    assert caught.value.where == "k"
    assert caught.value.hint is not None
    assert not s.trace.steps


def test_a_trace_with_a_wrong_number_of_arguments() -> None:
    with pytest.raises(
        ScheduleError, match="split: missing a required argument: 'factor'"
    ):
        Schedule(schedule().kernel, Trace.from_json('[["split", ["m.i"], {}]]'))


def test_a_trace_writes_a_call_in_one_way() -> None:
    """Whatever stands at its default, by position or by name."""
    calls: list[Callable[[Schedule], object]] = [
        lambda s: s.split("m.i", 4),
        lambda s: s.split("m.i", 4, "exact"),
        lambda s: s.split(loop="m.i", factor=4, tail="exact"),
        lambda s: Schedule.split(s, "m.i", factor=4),
    ]
    for call in calls:
        s = schedule()
        assert call(s) == ("m.i.o", "m.i.i") and str(s.trace) == "s.split('m.i', 4)"
    for guarded in (
        lambda s: s.split("m.i", 5, "guard"),
        lambda s: s.split("m.i", 5, tail="guard"),
    ):
        s = schedule()
        guarded(s)
        assert str(s.trace) == "s.split('m.i', 5, tail='guard')"
    s = schedule()
    s.cache_write("b", name="own")
    assert str(s.trace) == "s.cache_write('b', None, 'register', name='own')"


def test_a_method_takes_what_follows_the_kernel() -> None:
    assert list(signature(schedule().fuse).parameters) == ["outer", "inner"]
    assert (Schedule.fuse.__doc__ or "").startswith("Two directly nested loops as one")


def test_integers_of_numpy_are_integers() -> None:
    s = schedule()
    s.split("m.i", np.int64(4))  # type: ignore[arg-type]
    assert Trace.from_json(s.trace.to_json()) == s.trace
    with pytest.raises(ScheduleError, match="there is no loop None"):
        s.loop(None)  # type: ignore[arg-type]


def test_exact_arguments_are_recorded_as_they_are_by_name() -> None:
    """A trace has the same of arguments by place, which need not be bound, and of the last one by
    name; options are recorded by name, wherever they were given."""
    several = 0
    for name, primitive in PRIMITIVES.items():
        count = primitive._exact
        if not count:
            continue
        several += count > 1
        args = tuple(f"m.{n}" for n in range(count))
        last = list(signature(primitive._rewrite).parameters)[count]
        by_name = primitive._recorded(args[:-1], {last: args[-1]})
        assert primitive._recorded(args, {}) == by_name == (args, {}), name
    assert several > 10
    split = PRIMITIVES["split"]
    assert split._recorded(("i", 4, "guard"), {}) == (("i", 4), {"tail": "guard"})


def test_a_default_among_the_arguments_is_recorded() -> None:
    """So that all of what a step was asked to do is seen; also where nothing is left out."""
    s = schedule()
    s.cache_read("a", "m.i")
    assert s.trace.steps[0].args == ("a", "m.i", "stack")
    s = schedule()
    s.cache_read("a", "m.i", "stack")
    assert s.trace.steps[0].args == ("a", "m.i", "stack")


@pytest.mark.parametrize(
    "like", [4.0, np.array(4), "4"], ids=["float", "array", "text"]
)
def test_a_wrong_argument_is_refused_where_steps_are_cached(like: Any) -> None:
    """Also behind a step of the same kernel with an argument that equals it, or prints alike."""
    kernel = schedule().kernel
    cache = StepCache()
    with cache.used():
        Schedule(kernel).split("m.i", 4)
        for _ in range(2):
            with pytest.raises(ScheduleError, match=r"factor is .*4.*, not an integer"):
                Schedule(kernel).split("m.i", like)
        Schedule(kernel).split("m.i", 4)
    assert cache.hits == 1
