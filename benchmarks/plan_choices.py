"""Whether other planning decisions would make a network faster: changes one pass at a time.

    python -m benchmarks.plan_choices --networks mobilenet_v2,resnet18
    python -m benchmarks.plan_choices --networks resnet18 --sites [--mcpu x86-64-v3] [--math fast]

A decision omits a pass of the plan's pipeline, or changes one of its numbers. The resulting network
is compared with the default one, interleaved as in `tune` (`driver.in_network`), on one thread.
`--sites`: instead, the alternatives of each decision that `tune` makes (`plan.decisions`), of each
site alone, as `tune` measures them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

import click

import tilewright as tw
from benchmarks import harness, models
from tilewright.driver import planning
from tilewright.driver.decision_tasks import decision_tasks
from tilewright.driver.in_network import compared, seconds_of
from tilewright.driver.options import Options
from tilewright.driver.same_results import expect_equal
from tilewright.driver.tuning_session import How, Session
from tilewright.ir.passes import Pass, Pipeline
from tilewright.plan.nodes import Plan
from tilewright.plan.pipeline import (
    AddHalos,
    ConcatInPlace,
    Fuse,
    SeparateWindows,
    SplitDeepSums,
    SplitGroups,
    SplitWindows,
    Winograd,
)
from tilewright.runtime.executable import Executable
from tilewright.tune.base import Budget
from tilewright.tune.measure.options import Timing
from tilewright.tune.tuner import TaskOutcome

Decide = Callable[[Pass[Plan]], Pass[Plan] | None]


def without(kind: type[Pass[Plan]]) -> Decide:
    """Omit the pass."""
    return lambda p: None if isinstance(p, kind) else p


def changed(kind: Any, field: str, to: Callable[[Any], Any]) -> Decide:
    """A number of the pass is another one."""
    assert field in {f.name for f in fields(kind)}

    def decide(p: Any) -> Any:
        return (
            replace(p, **{field: to(getattr(p, field))}) if isinstance(p, kind) else p
        )

    return decide


CHOICES: Final[Mapping[str, Decide]] = {
    "no halo": changed(AddHalos, "halo", lambda _: 0.0),
    "halos of four times the size": changed(AddHalos, "halo", lambda n: 4 * n),
    "no Winograd": without(Winograd),
    "Winograd with copies for nothing": changed(
        Winograd, "costs", lambda c: replace(c, moved_ns=0.0)
    ),
    "Winograd F(4) as well": changed(Winograd, "tiles", lambda _: (2, 4)),
    "fuse what is read once": changed(Fuse, "repeated", lambda _: 1),
    "repeat eight times as much": changed(Fuse, "repeated", lambda n: 8 * n),
    "groups as they were fused": without(SplitGroups),
    "concatenations are copied": without(ConcatInPlace),
    "windows along all axes at once": without(SeparateWindows),
    "deep sums at once": without(SplitDeepSums),
    "window positions at once": without(SplitWindows),
}


@contextmanager
def decided(decide: Decide | None) -> Iterator[None]:
    """Plans compiled inside use this decision."""
    there: Any = planning
    usual = there.plan_pipeline

    def made(*args: Any, **more: Any) -> Pipeline[Plan]:
        found: Any = usual(*args, **more)
        passes = (
            found.passes if decide is None else filter(None, map(decide, found.passes))
        )
        changed: Pipeline[Plan] = replace(found, passes=tuple(passes))
        return changed

    there.plan_pipeline = made
    try:
        yield
    finally:
        there.plan_pipeline = usual


def compiled(path: str, decide: Decide | None) -> Executable:
    """A network on one thread; no cache knows of the decision."""
    with decided(decide):
        made = tw.compile(path, threads=1, records=False, cache=False)
    assert isinstance(made, Executable)
    return made


def rows(name: str) -> Iterator[str]:
    """A line for each decision."""
    path, _ = harness.prepare(name, models.default_directory())
    feeds = models.inputs(name)
    usual = compiled(str(path), None)
    for label, decide in CHOICES.items():
        other = compiled(str(path), decide)
        if code(other) == code(usual):
            yield f"{name}, {label}: the same code"
            continue
        expect_equal(usual, other, feeds)
        found = compared((usual, other), lambda exe: seconds_of(exe, feeds))
        times = f"{found.before * 1e3:.2f} ms -> {found.after * 1e3:.2f} ms"
        sure = f"faster with {found.confidence:.0%}"
        yield f"{name}, {label}: {times}, {found.gain:.3f} times as fast, {sure}"


def sites(name: str, mcpu: str, math: str) -> Iterator[str]:
    """A line for each site: its calls, and the microseconds of each alternative, best first."""
    path, _ = harness.prepare(name, models.default_directory())
    options: Any = {"threads": 1, "mcpu": mcpu, "math": math, "records": False}
    found = decision_tasks(str(path), **options)
    how = How("exhaustive", "black-box", realtime=True)
    timing = Timing("network", compiled(str(path), None).peak_bytes)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "records.sqlite")
        given = Options.of(options)
        asked = found, name, file, how, given, Budget(), timing
        with Session(*asked) as session:
            if found:
                session.search(None)
            for o in session.settled():
                yield f"{name}, {o.task.calls} x {o.task.name}: {_times(o, session)}"


def _times(o: TaskOutcome, session: Session) -> str:
    """The alternatives of a site with their times."""
    (tuning,) = (t for t in session.tunings if t.task is o.task)
    order = sorted(tuning.trials, key=lambda t: t.measurement.seconds)
    default = o.task.space.default()
    shown = [
        f"{t.candidate.sketch}{' (default)' * (t.candidate == default)} "
        f"{t.measurement.seconds * 1e6:.1f}"
        for t in order
    ]
    return f"{', '.join(shown)}; {o.gain:.2f} times as fast, {o.confidence:.0%} sure"


def code(exe: Executable) -> list[bytes]:
    """The generated code."""
    return [bytes(o) for o in exe.model.objects]


@click.command(epilog="Example: python -m benchmarks.plan_choices --networks lenet")
@harness.networks_option
@click.option("--sites", "of_sites", is_flag=True, help="What `tune` decides.")
@click.option("--mcpu", default="native", help="The processor, with --sites.")
@click.option("--math", default="default", help="The arithmetic, with --sites.")
def main(networks: list[str], of_sites: bool, mcpu: str, math: str) -> None:
    """Compare other decisions about the plans of networks with the usual ones."""
    for name in networks:
        for row in sites(name, mcpu, math) if of_sites else rows(name):
            click.echo(row)


if __name__ == "__main__":
    main()
