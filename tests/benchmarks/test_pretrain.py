"""What the pretrained model learns from, in files that a kill leaves whole; how fits are judged."""

import dataclasses
import hashlib
import json
from collections import Counter
from random import Random

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks import pretrain, pretrain_data, pretrain_fit
from benchmarks.pretrain_data import Collector, candidates
from benchmarks.pretrain_fit import (
    ALL,
    How,
    _verdict,
    by_kernel,
    fit,
    model_of,
    part_of,
    results,
)
from benchmarks.pretrain_rows import Row, Writer, packed, read
from tilewright.base.errors import InputError
from tilewright.driver.tasks import tasks
from tilewright.testing.random_layers import layer
from tilewright.tune.base import Job, Measurement, Prediction, Status
from tilewright.tune.features import Fast
from tilewright.tune.models.pretrained import read as read_model
from tilewright.tune.pretrained import choose

COLUMNS = [c.name for c in Fast().columns]
MACHINE = {"processor": "here", "version": "1", "features": ["avx2"]}


def row(n=0, **other):
    columns = np.zeros(len(COLUMNS), np.float32)
    columns[0] = n
    made = Row(
        "layer 0", "product", "t", "v3", "here", str(n), n == 0, "ok", 1e-3 * (n + 1), 1.0,
        packed(columns),
    )  # fmt: skip
    return dataclasses.replace(made, **other)


# ------------------------------------------------------------------------------------- the file


def written(path, *rows, done=()):
    writer = Writer(path, MACHINE)
    for one in rows:
        writer.add(one)
    for source in done:
        writer.finish("v3", source)
    writer.close()


def test_rows_are_kept(tmp_path):
    path = tmp_path / "d"
    rows = [row(0), row(1, status="crash", seconds=None)]
    written(path, *rows, done=["layer 0"])
    found = read([path])
    assert list(found.rows) == rows
    assert found.done == {("v3", "layer 0")}
    assert found.runs[0]["processor"] == "here"
    assert found.rows[1].columns[0] == 1


def test_a_line_that_a_kill_cut_off_is_not_read_and_not_written_behind(tmp_path):
    path = tmp_path / "d"
    written(path, row(0), row(1))
    whole = path.read_bytes()
    last = whole.rindex(b"\n", 0, -1) + 1
    for cut in (last + 1, len(whole) - 20, len(whole) - 1):
        path.write_bytes(whole[:cut])
        assert list(read([path]).rows) == [row(0)]
        written(path, row(2))
        assert list(read([path]).rows) == [row(0), row(2)]


def test_what_two_files_have_counts_once(tmp_path):
    written(tmp_path / "a", row(0), row(1))
    written(tmp_path / "b", row(1, seconds=9.0), row(2), row(1, machine="there"))
    found = read([tmp_path / "a", tmp_path / "b"]).rows
    assert list(found) == [row(0), row(1), row(2), row(1, machine="there")]


@pytest.mark.parametrize("line", ["{", "[]", '{"source": "x"}'])
def test_a_damaged_line_is_named(tmp_path, line):
    written(tmp_path / "d", row(0))
    with (tmp_path / "d").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(InputError, match="not a measured program") as caught:
        read([tmp_path / "d"])
    assert "line 3" in str(caught.value)


def test_features_of_another_size_or_version_are_refused(tmp_path, monkeypatch):
    written(tmp_path / "short", row(0, features=packed(np.zeros(3, np.float32))))
    with pytest.raises(InputError, match="not a measured program"):
        read([tmp_path / "short"])
    written(tmp_path / "d", row(0))
    monkeypatch.setattr(Fast, "version", Fast.version + 1)
    with pytest.raises(InputError, match="measure again"):
        read([tmp_path / "d"])


# ------------------------------------------------------------------------------------- measuring


class Runner:
    """Seconds by the number of a job; the third program crashes."""

    slots = 1

    def __init__(self, unit=1e-3):
        self.jobs = []
        self.unit = unit

    def measure(self, jobs):
        for job in jobs:
            self.jobs.append(job)
            if job.artifact == b"crash":
                yield job.number, Measurement(Status.CRASH, reason="it ended")
            else:
                yield job.number, Measurement(Status.OK, (self._seconds(job),))

    def _seconds(self, job):
        """Longer the first time."""
        again = sum(j.number == job.number for j in self.jobs) > 1
        return self.unit * (job.number + 1 + (not again))

    def close(self):
        """There is nothing to end."""


def build(task, points):
    for number, _ in points:
        if number == 1:
            yield number, Measurement(Status.BUILD, reason="no code")
        else:
            yield number, Job(number, b"crash" if number == 2 else b"")


class Clock:
    """Seconds pass as it is asked."""

    now = 0

    def __call__(self):
        self.now += 1
        return self.now


@pytest.fixture
def small(monkeypatch):
    """Layers that are quickly scheduled."""
    sources = {"layer": lambda seed: layer(seed, ("softmax",))}
    monkeypatch.setattr(pretrain_data, "SOURCES", sources)


def collected(path, known=(), end=np.inf, unit=1e-3):
    runner = Runner(unit)
    writer = Writer(path, MACHINE)
    made = Collector(
        writer,
        runner,
        build,
        "x86-64-v3",
        "here",
        5,
        end,
        clock=Clock(),
        said=Counter(),
    )
    made.model("layer 0", known)
    writer.close()
    return made, runner


def test_every_program_is_recorded(small, tmp_path):
    made, _ = collected(tmp_path / "d")
    found = read([tmp_path / "d"])
    assert Counter(r.status for r in found.rows) == {"ok": 3, "build": 1, "crash": 1}
    assert [r.default for r in found.rows].count(True) == 1
    assert {r.kind for r in found.rows} == {"softmax"}
    assert {r.candidate for r in found.rows if r.default} == {found.rows[-1].candidate}
    assert found.done == {("x86-64-v3", "layer 0")}
    assert made.said == {"ok": 3, "build": 1, "crash": 1, "models": 1}
    assert all(np.isfinite(r.columns).all() and r.columns.any() for r in found.rows)


def test_programs_take_turns_and_the_fastest_time_of_those_near_the_best_counts(
    small, tmp_path
):
    _, runner = collected(tmp_path / "d")
    numbers = [j.number for j in runner.jobs]
    assert numbers == [0, 0, 0, 0, 2, 3, 4, 0, 0]
    (default,) = (r for r in read([tmp_path / "d"]).rows if r.default)
    assert default.seconds == 1e-3


def test_a_crash_stays_a_crash(small, tmp_path):
    ok = Measurement(Status.OK, (1.0,))
    crash = Measurement(Status.CRASH, reason="it ended")
    assert pretrain_data.better(ok, crash) is crash
    assert pretrain_data.better(crash, ok) is crash
    assert pretrain_data.better(ok, Measurement(Status.OK, (2.0,))) is ok


def test_a_kernel_whose_times_say_little_is_not_recorded(small, tmp_path):
    made, runner = collected(tmp_path / "d", unit=pretrain_data.SHORTEST / 2)
    assert made.said == {"short": 1, "models": 1}
    assert {j.number for j in runner.jobs} == {0}
    assert not read([tmp_path / "d"]).rows


def test_a_kernel_that_is_known_is_not_measured_again(small, tmp_path):
    collected(tmp_path / "d")
    first = read([tmp_path / "d"]).rows
    _, runner = collected(tmp_path / "e", {first[-1].key})
    assert not runner.jobs
    # One that a kill cut off is.
    collected(tmp_path / "f", {r.key for r in first[:-1]})
    again = read([tmp_path / "f"]).rows
    assert {r.key for r in again} == {r.key for r in first}


def test_a_run_that_is_late_is_not_through(small, tmp_path):
    made, runner = collected(tmp_path / "d", end=1)
    assert not runner.jobs
    assert not read([tmp_path / "d"]).done
    assert made.late


def test_candidates_are_the_same_again_and_begin_with_the_default():
    (task,) = tasks(layer(0, ("product",)).case.graph, threads=1, mcpu="x86-64-v3")
    first = [c for c, _ in candidates(task, 12)]
    assert [c for c, _ in candidates(task, 12)] == first
    assert first[0] == task.space.default()
    assert len(set(first)) == 12


def test_code_of_another_processor_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("tilewright.runtime.machine.cpu_flags", frozenset)
    with pytest.raises(InputError, match="cannot run code"):
        pretrain_data.collect(tmp_path / "d", 1, "sapphirerapids", 2, MACHINE)
    assert not (tmp_path / "d").exists()


# ----------------------------------------------------------------------------------- the training


def made_up(models=60, programs=20):
    """Kernels whose time is a function of two features, and failures of a third; the default is
    a slow one."""
    rows = []
    for n in range(models):
        r = Random(n)
        for k in range(programs):
            columns = np.zeros(len(COLUMNS), np.float32)
            columns[:4] = r.random(), r.random(), k == 7, n % 4
            if k == 0:
                columns[0] = 0.9
            seconds = 1e-4 * (1 + n % 4) * float(np.exp(2 * columns[0]))
            rows.append(
                row(
                    k,
                    source=f"layer {n}",
                    kind=("a", "b")[n % 2],
                    task=hashlib.sha256(str(n).encode()).hexdigest(),
                    seconds=None if k == 7 else seconds,
                    status="crash" if k == 7 else "ok",
                    features=packed(columns),
                )
            )
    return rows


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "d"
    written(path, *made_up())
    return path


@pytest.mark.parametrize(
    "objective", ["rank", pytest.param("regression", marks=pytest.mark.slow)]
)
def test_a_model_learns_what_the_times_depend_on(data, objective):
    how = How(objective, rounds=40, members=2, margin=1.0, least=0.0)
    found = fit([data], how)
    kinds = {r.kind: r for r in found.results}
    assert set(kinds) == {"a", "b", ALL}
    whole = kinds[ALL]
    assert found.kernels == 60  # each is judged on, by a model of the others
    assert whole.kernels == kinds["a"].kernels + kinds["b"].kernels == 60
    assert whole.pairs > 0.8
    assert whole.top > 0.8
    assert whole.gain > 2
    assert whole.taken > 0.8
    assert whole.worst > 1


class Oracle:
    """Predicts by the first feature, with one spread for all."""

    def __init__(self, spread, sign=1.0):
        self.spread, self.sign = spread, sign

    def judge(self, rows):
        return Prediction(self.sign * 2 * rows[:, 0], np.full(len(rows), self.spread))

    def beside(self, default, rows):
        found = self.judge(rows)
        return Prediction(found.cost - self.sign * 2 * default[0], found.spread)


def judged(model, kernels, margin, least=0.0):
    how = How(margin=margin, least=least)
    of = [_verdict(model, {name: own}, how) for name, own in kernels.items()]
    return results({"product": of})


def test_the_judgment_by_hand():
    """Two kernels of a default of e times the best."""
    kernels = {}
    for name, at in (("k", 0.0), ("l", 0.25)):
        columns = np.zeros((9, len(COLUMNS)), np.float32)
        columns[:, 0] = [at + 0.5, *np.linspace(at, at + 0.4, 8)]
        seconds = np.exp(2 * columns[:, 0].astype(float))
        kernels[name] = [
            row(n, task=name, seconds=float(s), features=packed(c))
            for n, (s, c) in enumerate(zip(seconds, columns, strict=True))
        ]
    sure, whole = judged(Oracle(0.5), kernels, 1.0)
    assert (sure.kind, whole.kind) == ("product", ALL)
    assert whole.pairs == whole.top == whole.recall == 1
    assert whole.gain == whole.taken_gain == pytest.approx(np.e, rel=1e-5)
    assert whole.taken == 1
    unsure = judged(Oracle(1.1), kernels, 1.0)[-1]
    assert (unsure.taken, unsure.taken_gain, unsure.overall) == (0, 1, 1)
    assert unsure.gain == whole.gain
    assert judged(Oracle(0.5), kernels, 1.0, least=0.6)[-1].taken == 0
    wrong = judged(Oracle(0.0, -1.0), kernels, 1.0)[-1]
    assert wrong.pairs == 0
    assert wrong.gain == 1  # the default itself is what it takes for the fastest
    assert wrong.taken == 0


def test_models_are_held_out_as_a_whole():
    every = [part_of(f"layer {n}", 5) for n in range(300)]
    assert all(30 < every.count(part) < 90 for part in range(5))
    other = [part_of(f"layer {n}", 5, "member ") for n in range(300)]
    assert 30 < sum(a == b for a, b in zip(every, other, strict=True)) < 90
    rows = [row(n, source="layer 1") for n in range(9)]
    rows += [row(n, source="layer 2") for n in range(9, 12)]
    ((_, own),) = by_kernel(rows).items()
    assert {r.source for r in own} == {"layer 1"}


def test_no_model_is_judged_on_what_it_learned(data, monkeypatch):
    seen = []

    def spy(kernels, how):
        seen.append({own[0].source for own in kernels.values()})
        return model_of(kernels, how)

    monkeypatch.setattr(pretrain_fit, "model_of", spy)
    fit([data], How(rounds=2, members=2))
    *parts, whole = seen
    assert len(parts) == 5 and len(whole) == 60
    left_out = [whole - part for part in parts]
    assert set.union(*left_out) == whole
    assert sum(map(len, left_out)) == 60


def test_each_member_leaves_some_models_out(data):
    kernels = by_kernel(read([data]).rows)
    several = model_of(kernels, How(rounds=5, members=3)).members
    alone = model_of(kernels, How(rounds=5, members=1)).members
    assert len(several) == 3 and len(alone) == 1
    rows = np.stack([r.columns for own in kernels.values() for r in own])
    values = [m.values(rows).tobytes() for m in (*several, *alone)]
    assert len(set(values)) == 4


def test_kernels_that_take_no_time_are_left_out():
    rows = [row(n) for n in range(9)]
    assert by_kernel(rows, shortest=1e-3)
    assert not by_kernel(rows, shortest=1.1e-3)  # its default takes 1 ms
    failed = [row(0, seconds=None, status="crash"), *(row(n) for n in range(1, 10))]
    assert by_kernel(failed) and not by_kernel(failed, shortest=1e-9)


def test_kernels_of_few_programs_do_not_count(tmp_path):
    assert not by_kernel([row(n) for n in range(7)])
    failed = [row(n, seconds=None, status="crash") for n in range(7, 20)]
    assert not by_kernel([*(row(n) for n in range(7)), *failed])
    written(tmp_path / "d", *(row(n) for n in range(20)))
    with pytest.raises(InputError, match="parts to judge on"):
        fit([tmp_path / "d"], How())


def test_the_command_writes_a_model_with_its_card(data, tmp_path):
    out = tmp_path / "m.json"
    given = [str(data), "-o", str(out), "--rounds", "30", "--members", "2"]
    done = CliRunner().invoke(pretrain.main, ["train", *given, "--no-prior"])
    assert done.exit_code == 0, done.output
    assert "top-1" in done.output
    model = read_model(out)
    assert model.card["programs"] == 1200
    assert model.card["statuses"] == {"ok": 1140, "crash": 60}
    assert model.card["accuracy"][-1]["kind"] == ALL
    assert set(model.card["versions"]) == set(pretrain_fit.PACKAGES)
    page = out.with_suffix(".md").read_text()
    assert "- kernels: 60" in page
    assert "| pairs |" in page
    (task,) = tasks(layer(0, ("softmax",)).case.graph, threads=1, mcpu="x86-64-v3")
    assert choose(task, model, 1e9, candidates=4).tried


def test_the_card_has_names_of_files_and_not_where_they_are(tmp_path, monkeypatch):
    given = [tmp_path / "d.jsonl", tmp_path / "m.json"]
    arguments = ["train", str(given[0]), "-o", str(given[1])]
    monkeypatch.setattr("sys.argv", ["pretrain.py", *arguments])
    wanted = "python -m benchmarks.pretrain train d.jsonl -o m.json"
    assert pretrain._command(given) == wanted


def test_a_model_that_is_too_large_is_not_written(data, tmp_path, monkeypatch):
    monkeypatch.setattr(pretrain_fit, "LIMIT", 1000)
    given = [str(data), "-o", str(tmp_path / "m"), "--rounds", "5"]
    done = CliRunner().invoke(pretrain.main, ["train", *given])
    assert done.exit_code == 1
    assert "bytes" in done.output
    assert not list(tmp_path.iterdir())


def test_a_damaged_file_is_an_error_in_one_line(tmp_path):
    (tmp_path / "d").write_text(json.dumps([]) + "\n")
    given = ["train", str(tmp_path / "d"), "-o", str(tmp_path / "m")]
    done = CliRunner().invoke(pretrain.main, given)
    assert done.exit_code == 1
    assert "line 1" in done.output
