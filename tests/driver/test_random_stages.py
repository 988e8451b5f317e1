"""Random plans: right after every pass, as kernels on several machines, and whole."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tilewright.base.dtypes import float32
from tilewright.compute.build import map_
from tilewright.driver.kernels import KernelCompiler
from tilewright.expr.nodes import Buffer, Load
from tilewright.plan import normalize, pipeline
from tilewright.plan.nodes import FusionGroup, Step
from tilewright.plan.normalize import kernel_signature
from tilewright.plan.passes import recompute
from tilewright.plan.passes.fuse import fuse
from tilewright.plan.passes.halo import add_halos
from tilewright.targets.registry import target
from tilewright.testing import guarded, random_stages
from tilewright.testing.random_stages import difference, run

SEEDS = range(300)
SLOW = range(1000, 2000)
EIGHTH = 8  # every so many lists is compiled, too


@pytest.mark.sampled(86)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_list_is_right_after_every_pass(seed: int) -> None:
    assert run(seed, native=seed % EIGHTH == 0) is None


def test_no_window_fits_into_an_image_without_columns() -> None:
    """This list would pool a slice of none."""
    assert run(1777, native=False) is None


def test_a_tensor_without_elements_is_written_by_no_step() -> None:
    """This list convolves one, which its arena has a place for."""
    assert run(1779) is None


@pytest.mark.slow
@pytest.mark.parametrize("start", range(SLOW.start, SLOW.stop, 50))
def test_many(start: int) -> None:
    failures = [
        str(f) for seed in range(start, start + 50) if (f := run(seed)) is not None
    ]
    assert not failures


def first_failure(count: int = 60) -> random_stages.StageFailure:
    """The first fault among some lists. Without one a check misses what it is there for."""
    found = (run(seed, native=False) for seed in range(count))
    return next(f for f in found if f is not None)


def test_a_halo_without_its_border_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def borderless(steps: Sequence[Step], keep: Any, *more: Any) -> list[Step]:
        made = add_halos(steps, keep, *more)
        return [
            s
            for s in made
            if not (isinstance(s, FusionGroup) and s.name.endswith(".halo"))
        ]

    monkeypatch.setattr(pipeline, "add_halos", borderless)
    failure = first_failure()
    assert failure.where == "after add-halos"
    assert "TW" not in failure.message and "not written before" in failure.message


def test_a_wrong_value_is_found_after_the_pass_that_made_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def negated(steps: Sequence[Step], *how: Any) -> list[Step]:
        made = fuse(steps, *how)
        for n, s in enumerate(made):
            if isinstance(s, FusionGroup) and s.is_map and s.computations[0].dims:
                c = s.computations[0]
                if c.outputs[0].value.dtype is float32:
                    o = c.outputs[0]
                    wrong = type(o)(o.tensor, o.index, -o.value)
                    made[n] = FusionGroup(
                        s.name, (type(c)(c.name, c.dims, (wrong,)),), s.sources
                    )
        return made

    monkeypatch.setattr(pipeline, "fuse", negated)
    failure = first_failure()
    assert failure.where == "after fuse"
    assert "expected" in str(failure)


def test_a_reduction_into_part_of_a_tensor_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(normalize, "local_results", tuple)
    assert "does not fill it alone" in first_failure().message


def test_what_is_computed_again_from_another_value_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def twice(new: Buffer) -> Any:
        times = 2 if new.dtype.is_float else 1
        return lambda load: Load(new, load.index) * times

    monkeypatch.setattr(recompute, "_load_of", twice)
    monkeypatch.setattr(
        random_stages, "_asked", lambda seed: {"limit": 0, "fusion": True}
    )
    assert first_failure().where == "after recompute"


def test_a_kernel_that_writes_around_its_tensors_is_found() -> None:
    x, y = Buffer("x", (8,), float32), Buffer("y", (8,), float32)
    face = kernel_signature(
        FusionGroup("s", (map_("s", y, lambda i: x[i] * 2.0),)), {y}
    )
    machine = target("cpu")
    code = KernelCompiler(machine, machine, None).compile(face, ())
    memory = {x: np.arange(8, dtype=np.float32), y: np.zeros(8, np.float32)}
    after, wrong = guarded.call(face, code, memory, (False, False))
    assert not wrong and after[y].tolist() == [2.0 * n for n in range(8)]
    small = {b: Buffer(b.name, (6,), float32) for b in (x, y)}
    face = type(face)(
        "s", (), None, (small[x], small[y]), face.params, face.outputs, (0, 0)
    )
    memory = {b: np.zeros(6, np.float32) for b in small.values()}
    after, wrong = guarded.call(face, code, memory, (False, False))
    assert (
        not after
        and len(wrong) == 1
        and re.fullmatch(r"fault: \w+ at \d+ bytes past the end of .", wrong[0])
    )
    swapped = type(face)("s", (), None, (y, x), (y, x), (x,), (0, 0))
    memory = {x: np.zeros(8, np.float32), y: np.ones(8, np.float32)}
    twisted = type(code)(code.symbol, (1, 0), code.workspace, 0, (), code.code, ())
    _, wrong = guarded.call(swapped, twisted, memory, (False, False))
    assert len(wrong) == 1 and re.fullmatch(r"fault: write at byte \d+ of y", wrong[0])


def test_what_a_difference_is() -> None:
    a = np.array([1.0, np.nan, np.inf, 100.0])
    assert difference(a, a) == ""
    assert difference(a + [0, 0, 0, 0.01], a) == ""
    text = "1 of 4 wrong, first element 3: 101.0, expected 100.0"
    assert difference(a + [0, 0, 0, 1], a) == text
    assert difference(np.array([1.0, 0, np.inf, 100.0]), a).startswith("1 of 4 wrong")
    assert difference(a[:3], a) == "3 elements, expected 4"
