"""Autoschedulers by Halide's names: what runs is said, is legal, and replays."""

from __future__ import annotations

from pathlib import Path

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


def test_the_search_tells_what_it_chose() -> None:
    """A tile of eight rows shares what it loads: the sums of a row are never all in memory."""
    image = hl.ImageParam(hl.UInt(16), 2, "image")
    rows, both = hl.funcs("rows both")
    rows[x, y] = (image[x, y] + image[x + 1, y] + image[x + 2, y]) / 3
    both[x, y] = (rows[x, y] + rows[x, y + 1] + rows[x, y + 2]) / 3
    both.set_estimates([(0, 6400), (0, 4800)])
    params = hl.AutoschedulerParams("Adams2019", {"parallelism": 1, "beam_size": 2})
    found = both.apply_autoscheduler(CPU, params)
    assert "rows: uint16[4802, 6400]" in str(found.program)
    assert "rows: uint16[4802, 6400]" not in str(found.function.kernel)
    assert "s.split('both.y', 8)" in found.schedule_source
    assert "Adams2019" in found.function.why()


@pytest.mark.parametrize(("measured", "again"), [(0.5, True), (64, False)])
def test_the_search_prices_by_the_machine_description(
    measured: float, again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values are computed again where the second cache is slow, and kept there where it is fast."""
    file = tmp_path / "machine.toml"
    file.write_text(f"[costs]\nsecond_bytes = {measured}\n")
    monkeypatch.setenv("TILEWRIGHT_MACHINE", str(file))
    image = hl.ImageParam(hl.Float(32), 2, "image")
    rows, both = hl.funcs("rows both")
    value = image[x, y] * (image[x + 1, y] - 1.0) * (image[x + 2, y] - 2.0)
    rows[x, y] = value * (image[x, y] - 3.0)
    both[x, y] = rows[x, y] + rows[x, y + 7] * rows[x, y + 15]
    image.set_estimates([hl.Range(0, 2002), hl.Range(0, 1015)])
    both.set_estimates([hl.Range(0, 2000), hl.Range(0, 1000)])
    params = hl.AutoschedulerParams("Adams2019", {"parallelism": 1})
    found = hl.Pipeline(both).apply_autoscheduler(hl.get_host_target(), params)
    assert ("compute_inline('rows')" in found.function.why()) is again


def test_the_search_takes_updates_and_any_region() -> None:
    """A histogram of each cell, which the rules refuse, over a region with partial vectors."""
    image = hl.Buffer(IMAGE, name="image")
    cells, out = hl.funcs("cells out")
    r = hl.RDom([(0, 4)], "r")
    level = hl.i32(hl.clamp(image[x * 4 + r, y], 0.0, 1.0) * 5.0)
    z = hl.Var("z")
    cells[x, y, z] = hl.f32(0)
    cells[x, y, level] += image[x * 4 + r, y]
    out[x, y] = cells[x // 4, y // 2, 1] + cells[x // 4, y // 2 + 1, 3]
    out.set_estimates([(0, 64), (0, 32)])
    region = hl.Buffer(hl.Float(32), [29, 11])
    region.set_min([7, 5])
    out.realize(region, target="interp")
    want = np.array(region)
    pipeline = hl.Pipeline(out)
    with pytest.raises(TilewrightError):
        pipeline.apply_autoscheduler(CPU, hl.AutoschedulerParams("Li2018"))
    pipeline.apply_autoscheduler(CPU, hl.AutoschedulerParams("Adams2019"))
    np.asarray(region)[:] = 0
    pipeline.realize(region)
    np.testing.assert_allclose(np.asarray(region), want, rtol=1e-5)


def test_what_the_search_refuses() -> None:
    f, image = hl.Func("f"), hl.ImageParam(hl.Float(32), 2, "image")
    f[x, y] = image[x, y] + 1.0
    f.set_estimates([(0, 64), (0, 32)])
    f.apply_autoscheduler(CPU, hl.AutoschedulerParams("Adams2019"))
    with pytest.raises(InputError, match="sizes are known only when it is called"):
        f.compile_jit()


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
        ("Adams2019", {"dropout": 8}, "has no parameter 'dropout'"),
        ("Adams2019", {"beam_size": 0}, "beam_size=0; give a number, 1 or more"),
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
