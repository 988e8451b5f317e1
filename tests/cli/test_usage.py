"""What somebody sees who types a command wrong, asks for help, or completes a word."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

from tilewright.cli import engines


@pytest.mark.parametrize(
    ("line", "near"), [("rum", "run"), ("cache lst", "list"), ("records lst", "list")]
)
def test_a_wrong_verb_brings_the_nearest(command, line, near):
    found = command(*line.split())
    assert found.code == 2 and f"Did you mean '{near}'?" in found.err, found.err
    assert found.err.count("Did you mean") == 1


def test_a_wrong_option_brings_the_nearest(command, perceptron):
    found = command("run", perceptron, "--profil")
    assert found.code == 2 and "'--profile'" in found.err, found.err


@pytest.mark.parametrize(
    ("line", "where", "said"),
    [
        ("run M --nope --json", "tilewright run", "No such option '--nope'"),
        ("cache list --limit 0 --json", "tilewright cache list", "'--limit'"),
        ("nope --json", "tilewright", "No such command 'nope'"),
        ("run M --strict --json", "tilewright run", "use --fallback error"),
    ],
)
def test_as_json_wrong_usage_is_json(command, perceptron, line, where, said):
    found = command(*(perceptron if word == "M" else word for word in line.split()))
    assert found.code == 2 and not found.err
    error = found.json["error"]
    assert error["code"] == "TW-USAGE" and error["where"] == where
    assert said in error["message"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("run M --target gpu", "--target: unknown target 'gpu'; known: "),
        ("run M --mcpu znver9", "--mcpu: unknown processor 'znver9'; did you mean"),
        ("optimize M --cost speed", "--cost: unknown cost 'speed'; choose from"),
        ("optimize M --cost time*-1", "--cost: the weight of 'time' is -1.0"),
        ("run M --dim tiem=3", "--dim: no dimension is called 'tiem'"),
        ("verify M --dim batch=1..3", "--dim: batch has no single value"),
        ("run M --dim batch", "'batch': expected NAME=EXTENT"),
        ("run M --dim batch=64..2", "or NAME=LEAST..GREATEST, such as batch=1..64"),
        ("run M --threads 0", "'--threads'"),
        ("run M --math quick", "'--math'"),
        ("run M --memory-limit much", "'--memory-limit'"),
        ("tune M --time soon", "'--time'"),
        ("run M --scales s.json", "--scales: --target cpu does not take s.json"),
        ("run M --precision tf32", "does not take tf32; for --target cuda"),
        ("run M --mean 1", "--mean: it is for pictures"),
        ("run M --why", "--why: it explains what --profile shows"),
        ("quantize M --for gpu --sample x.npz", "--for: "),
        ("serve F --api-key @gone", "--api-key: the key cannot be read"),
    ],
)
def test_every_wrong_option_exits_with_2(command, perceptron, tmp_path, line, said):
    words = {"M": perceptron, "F": tmp_path}
    found = command(*(words.get(word, word) for word in line.split()))
    assert (found.code, found.out) == (2, "") and said in found.err, found.err


@pytest.mark.parametrize(
    "line", ["run gone.onnx", "run M --inputs gone.npz", "run M --memory-limit 1"]
)
def test_any_other_failure_exits_with_1(command, perceptron, line):
    found = command(*(perceptron if word == "M" else word for word in line.split()))
    assert found.code == 1, found.err


@pytest.mark.parametrize("verb", ["run", "check", "verify"])
def test_a_missing_model_brings_the_nearest_of_its_folder(command, perceptron, verb):
    for name in (f"{perceptron.stem}x.onnx", perceptron.name.upper()):
        found = command(verb, perceptron.with_name(name))
        wanted = f"{name}: no such file. Did you mean {perceptron.name!r}?"
        assert found.code == 1 and wanted in found.err, found.err
    artifact = perceptron.with_suffix(".tw")
    artifact.touch()
    found = command("run", perceptron.with_name("perceptrom.tw"))
    assert f"no such file. Did you mean {artifact.name!r}?" in found.err, found.err
    artifact.unlink()
    found = command(verb, perceptron.with_name("zzz.onnx"))
    assert "no such file. Check the path" in found.err, found.err
    found = command(verb, perceptron.parent / "gone" / "a.onnx")
    assert "gone' cannot be listed" in found.err, found.err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_full_disk_is_said_of_stdout(perceptron, more):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tilewright", "check", str(perceptron), *more],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == "tilewright: stdout: No space left on device\n"


def test_a_full_disk_of_another_file_is_not_said_of_stdout(
    command, perceptron, monkeypatch
):
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tilewright.cli.check.load_graph", full)
    found = command("check", perceptron)
    assert found.code == 1 and "No space left" in found.err, found.err
    assert "stdout" not in found.err


def test_help_is_as_wide_as_the_terminal_and_whole(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    wide = command("run", "--help").out
    assert "or 1 on a simulated device." in wide
    assert max(map(len, wide.splitlines())) > 100
    monkeypatch.setenv("COLUMNS", "70")
    narrow = command("--help").out
    assert max(map(len, narrow.splitlines())) <= 70
    listed = " ".join(narrow.split("Commands:")[1].split())
    assert "..." not in listed and "compare their outputs." in listed


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_a_shell(command, shell):
    found = command("completion", shell)
    assert found.code == 0 and f"_TILEWRIGHT_COMPLETE={shell}_complete" in found.out


def test_a_shell_completes_verbs_and_options():
    def completed(words: str, at: int) -> list[str]:
        asked = {
            "_TILEWRIGHT_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(at),
        }
        done = subprocess.run(
            [sys.executable, "-m", "tilewright"],
            env=os.environ | asked,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout.split()

    assert completed("tilewright ru", 1) == ["plain,run"]
    assert "plain,--profile" in completed("tilewright run --prof", 2)


def test_emit_of_one_kernel(command, perceptron):
    every = command("compile", perceptron, "--emit", "computation")
    assert "# hidden" in every.out and "# head" in every.out
    for pattern in ("head", "h*ad"):
        one = command(
            "compile", perceptron, "--emit", "computation", "--kernel", pattern
        )
        assert "# head" in one.out and "# hidden" not in one.out
    schedule = command("compile", perceptron, "--emit", "schedule", "--kernel", "head")
    assert "head" in schedule.out and "hidden" not in schedule.out


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        (
            "--kernel head",
            2,
            "--kernel: it chooses what --emit prints. Add --emit kernel",
        ),
        ("--emit graph --kernel head", 1, "the stage 'graph' is about the whole model"),
        ("--emit kernel --kernel heed", 2, "there is no kernel 'heed'"),
    ],
)
def test_emit_of_no_kernel(command, perceptron, line, code, said):
    found = command("compile", perceptron, *line.split())
    assert found.code == code and said in found.err, found.err


def test_a_stage_that_a_device_has_not_is_refused(command, perceptron):
    pytest.importorskip("pyopencl")
    found = command("compile", perceptron, "--emit", "llvm", "--target", "opencl")
    assert found.code == 1 and not found.out
    assert "kernels on opencl have no stage 'llvm'" in found.err, found.err


def test_without_pytorch_the_build_for_processors_is_named(
    command, monkeypatch, tmp_path
):
    """PyPI's build for Linux brings gigabytes of libraries for GPUs."""
    index = "--index-url https://download.pytorch.org/whl/cpu"
    monkeypatch.setitem(sys.modules, "torch", None)
    model = tmp_path / "m.pt2"
    model.write_bytes(b"")
    found = command("run", model)
    assert found.code == 1 and index in found.err, found.err
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    assert index in (engines.missing("torch_eager") or "")
    assert index not in (engines.missing("onnxruntime") or "")
