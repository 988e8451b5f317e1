"""Autoschedulers by Halide's names: what runs is said, is legal, and replays."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import halide as hl
from tilewright.base.errors import InputError, ScheduleError, TilewrightError
from tilewright.lang.halide.autoschedule import RUNS
from tilewright.schedule import Schedule

IMAGE = np.random.default_rng(0).random((34, 66), np.float32)
x, y = hl.vars("x y")
CPU = hl.get_host_target()


def blur(estimates: bool = True) -> tuple[hl.Func, hl.Func]:
    image = hl.Buffer(IMAGE, name="image")
    rows, blurred = hl.Func("rows"), hl.Func("blurred")
    rows[x, y] = (image[x, y] + image[x + 1, y] + image[x + 2, y]) / 3
    blurred[x, y] = (rows[x, y] + rows[x, y + 1] + rows[x, y + 2]) / 3
    if estimates:
        blurred.set_estimates([(0, 64), (0, 32)])
    return rows, blurred


def expected() -> np.ndarray:
    rows = (IMAGE[:, :-2] + IMAGE[:, 1:-1] + IMAGE[:, 2:]) / 3
    return (rows[:-2] + rows[1:-1] + rows[2:]) / 3


@pytest.mark.parametrize("name", RUNS)
def test_the_result_is_right_and_replays(name: str) -> None:
    pipeline = hl.Pipeline(blur()[1])
    hl.load_plugin(f"autoschedule_{name.lower()}")
    found = pipeline.apply_autoscheduler(CPU, hl.AutoschedulerParams(name))
    assert f"# {name}: {RUNS[name]}" in found.schedule_source
    s = Schedule(found.program)
    exec(found.schedule_source, {"s": s})
    assert s.trace.steps
    assert str(s.kernel) == str(found.function.kernel)
    for width, height in [(64, 32), (33, 7)]:
        got = np.asarray(pipeline.realize([width, height]))
        np.testing.assert_allclose(got, expected()[:height, :width], rtol=1e-5)


def test_the_search_finds_another_schedule_than_the_rules() -> None:
    """Recomputing the rows is cheaper by the model than to write them to memory."""
    found = {}
    for name in ("Adams2019", "Li2018"):
        params = hl.AutoschedulerParams(name, {"parallelism": "2"})
        found[name] = blur()[1].apply_autoscheduler(CPU, params).schedule_source
    lines = {name: text.splitlines()[2:] for name, text in found.items()}
    assert lines["Adams2019"] != lines["Li2018"]


def test_without_a_name_the_schedule_is_the_user_s() -> None:
    f = blur()[1]
    plain = f.compile_jit([64, 32]).source()
    f.apply_autoscheduler(CPU, hl.AutoschedulerParams("Li2018"))
    assert f.compile_jit([64, 32]).source() != plain
    assert "by hand" not in f.compile_jit([64, 32]).why()
    assert f.realize([4, 4], target="interp").width() == 4


@pytest.mark.parametrize(
    ("name", "extra", "message"),
    [
        ("Anderson2021", {}, 'write gpu_tile for a GPU; "Adams2019"'),
        ("Adams2020", {}, "take one of Adams2019, Li2018, Mullapudi2016"),
        ("", {}, "take one of Adams2019"),
        ("Adams2019", {"beam_size": 8}, "has no parameter 'beam_size'"),
        ("Li2018", {"parallelism": "many"}, "parallelism='many'"),
        ("Li2018", {"parallelism": 0}, "parallelism=0"),
    ],
)
def test_what_is_refused(name: str, extra: dict[str, object], message: str) -> None:
    f = blur()[1]
    with pytest.raises(TilewrightError) as caught:
        f.apply_autoscheduler(CPU, hl.AutoschedulerParams(name, extra))
    assert message in str(caught.value)
    f.compute_root()
    f.realize([4, 4])  # nothing was applied


def test_directives_are_not_lost() -> None:
    rows, f = blur()
    rows.compute_root()
    with pytest.raises(ScheduleError, match="Func rows: Li2018 schedules all"):
        f.apply_autoscheduler(CPU, hl.AutoschedulerParams("Li2018"))
    rows, f = blur()
    f.apply_autoscheduler(CPU, hl.AutoschedulerParams("Li2018"))
    f.vectorize(x, 8)
    with pytest.raises(ScheduleError, match="Func blurred: Li2018 schedules all"):
        f.realize([64, 32])


def test_what_it_needs() -> None:
    params = hl.AutoschedulerParams("Mullapudi2016")
    with pytest.raises(InputError, match="set_estimates before"):
        blur(estimates=False)[1].apply_autoscheduler(CPU, params)
    h = hl.Func("h")
    h[x] = 0
    r = hl.RDom([(0, 8)], "r")
    h[hl.clamp(hl.i32(hl.Buffer(IMAGE, name="image")[r, 0]), 0, 3)] += 1
    h.set_estimates([(0, 4)])
    with pytest.raises(TilewrightError):
        h.apply_autoscheduler(CPU, params)
    assert "by hand" in h.compile_jit([4]).why()


def test_plugins() -> None:
    hl.load_plugin("libautoschedule_adams2019.so")
    with pytest.raises(InputError, match="there is no plugin 'mine'"):
        hl.load_plugin("mine")


def test_a_generator_is_scheduled_by_its_context() -> None:
    class Half(hl.Generator):
        image = hl.InputBuffer(hl.Float(32), 2)
        result = hl.OutputBuffer(hl.Float(32), 2)

        def generate(self) -> None:
            assert self.using_autoscheduler()
            self.result[x, y] = self.image[x, y] / 2
            self.result.set_estimates([(0, 64), (0, 32)])
            self.image.dim(0).set_bounds(0, 64)

    context = hl.GeneratorContext(CPU, hl.AutoschedulerParams("Li2018"))
    with context:
        made = Half()
    f = made.compile_to_callable([64, 32])
    assert "chosen: map" in f.why()
    assert not hl.GeneratorContext().autoscheduler_params().name
