"""Code of networks before and after: what is the same, what differs."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from click.testing import CliRunner

from benchmarks import replay

BEFORE = "# conv: conv, relu\ndefine void @a()\n# pool: pool\ndefine void @b()"


def test_same_text_has_no_differences() -> None:
    assert replay.differences(BEFORE, BEFORE) == []


def test_a_kernel_that_differs_or_is_new_is_named() -> None:
    changed = BEFORE.replace("@b", "@c") + "\n# gemm: gemm\ndefine void @d()"
    assert replay.differences(BEFORE, changed) == ["1: pool: pool", "2: gemm: gemm"]


@pytest.mark.slow
def test_a_network_is_written_and_compared(tmp_path) -> None:
    options = ["--networks", "lenet", "--threads", "1", "--mcpu", "x86-64-v3"]
    options += ["--dir", str(tmp_path)]
    before, after = tmp_path / "before", tmp_path / "after"
    assert CliRunner().invoke(replay.main, [str(before), *options]).exit_code == 0
    written = before / "lenet-x86-64-v3-1.ll"
    assert len(replay.kernels(written.read_text())) > 3
    options += ["--against", str(before)]
    assert CliRunner().invoke(replay.main, [str(after), *options]).exit_code == 0
    written.write_text(written.read_text().replace(" float ", " double "))
    found = CliRunner().invoke(replay.main, [str(after), *options])
    assert found.exit_code == 1 and "differs" in found.output
