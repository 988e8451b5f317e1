"""Calls timed in rounds: their order, their seconds; options of the benchmarks are in one place."""

import re
from itertools import count
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

pytest.importorskip("torch")
pytest.importorskip("onnx")
from benchmarks import harness, turns

ROOT = Path(harness.__file__).parent


@pytest.mark.parametrize(
    ("swapped", "order"), [(False, "abcabcabc"), (True, "cbaabccba")]
)
def test_every_round_times_all_in_turn(swapped, order):
    went = []
    timed = {k: lambda k=k: went.append(k) or float(len(went)) for k in "abc"}
    found = turns.by_turns(timed, 3, swapped=swapped)
    assert "".join(went) == order
    assert list(found) == ["a", "b", "c"]
    for key, seconds in found.items():
        assert seconds == [n + 1 for n, k in enumerate(order) if k == key]


def test_a_stopwatch_tells_the_seconds_of_one_call():
    ticks, called = count(), []
    clock = lambda: 10.0 * next(ticks)  # noqa: E731
    timed = turns.stopwatch(lambda: called.append(1), clock, calls=4)
    assert timed() == 2.5 and len(called) == 4


def test_a_batch_is_one_call_at_least():
    called = []
    assert turns.batch_seconds(lambda: called.append(1), 0.0) >= 0.0
    assert called == [1]


def test_two_programs_fill_rounds_of_the_same_length():
    now = [0.0]

    def taking(seconds):
        def call():
            now[0] += seconds

        return call

    slow, fast = taking(4 * turns.ROUND), taking(turns.ROUND / 10)
    once = [4 * turns.ROUND, turns.ROUND / 10]
    found = turns.pair(fast, slow, 3, lambda: now[0], once[::-1])
    assert found["ratio"] == pytest.approx(40)
    assert found["ms"] == pytest.approx([1e3 * s for s in once[::-1]])
    assert now[0] == pytest.approx(3 * 5 * turns.ROUND)  # 10 of one, one of the other


def test_the_clock_of_one_thread_is_its_own_time():
    assert turns.clock_of(1) is not turns.clock_of(2)


@pytest.mark.parametrize("value", ["0", "1,x", ""])
def test_numbers_of_threads_are_refused_in_words(value):
    @click.command()
    @harness.thread_counts_option()
    def main(threads):
        click.echo(threads)

    assert CliRunner().invoke(main, []).output == "[1, 2]\n"
    result = CliRunner().invoke(main, ["--threads", value])
    assert result.exit_code == 2 and "--threads" in result.output


def test_options_and_loops_are_written_once():
    repeated = {
        "the directory of models": r'click\.option\(\s*"--dir",',
        "rounds": r'click\.option\("--rounds", default=\d+, (show|help)',
        "a loop of calls in turn": r"for _ in range\(rounds\):\n\s+for .*:\n\s+\w+ = (time|clock)",
    }
    own = {"pretrain.py", "harness.py", "turns.py"}  # the rounds of a training
    for what, pattern in repeated.items():
        found = [
            p.name
            for p in sorted(ROOT.glob("*.py"))
            if p.name not in own and re.search(pattern, p.read_text())
        ]
        assert found == [], what
