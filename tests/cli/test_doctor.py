"""`tilewright doctor` and `tilewright cache`: facts, problems, exit codes."""

import os
from pathlib import Path

import pytest

import tilewright as tw
from tilewright.base import events, flags
from tilewright.base.store import default_store
from tilewright.cli import doctor, output
from tilewright.cli.advice import advice, cores
from tilewright.runtime import machine


def test_doctor_knows_the_machine_and_every_flag(command):
    found = command("doctor", "--json")
    report = found.json
    assert found.code == (1 if report["problems"] else 0)
    assert report["threads"]["used"] >= 1
    assert report["processor"]["arch"]
    assert {row["name"] for row in report["flags"]} == {f.name for f in flags.TABLE}
    versions = {p["name"]: p["version"] for p in report["packages"]}
    assert versions["numpy"] and versions["onnx"]


def test_packages_of_a_source_tree_that_is_not_installed(command, monkeypatch):
    installed = {p["name"]: p for p in command("doctor", "--json").json["packages"]}

    def missing(name):
        raise doctor.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor.importlib.metadata, "requires", missing)
    found = {p["name"]: p for p in command("doctor", "--json").json["packages"]}
    assert found["numpy"]["version"] and found["numpy"]["extras"] == []
    assert "torch" in found["torch"]["extras"]
    assert {n.replace("_", "-") for n in found} >= {
        n.replace("_", "-") for n in installed
    }
    monkeypatch.setattr(doctor, "_PROJECT", Path("/nowhere/pyproject.toml"))
    shown = command("doctor").out
    assert "packages: unknown, because tilewright is not installed" in shown
    assert "package  version" not in shown


def test_processors_of_one_name_are_told_apart(tmp_path, monkeypatch):
    """Virtual machines on Zen 3 and Zen 4 both say AMD EPYC: their figures are not one table."""
    names = []
    for text in (
        "cpu family\t: 25\nmodel\t\t: 1\nmodel name\t: AMD EPYC\n",
        "cpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\n",
        "model name\t: Cortex\n",
    ):
        path = tmp_path / str(len(names))
        path.write_text(text)
        monkeypatch.setattr(machine, "_CPUINFO", path)
        names.append(machine.processor_name())
    assert names == [
        "AMD EPYC, family 25 model 1",
        "AMD EPYC, family 25 model 17",
        "Cortex",
    ]


def test_doctor_says_where_a_value_comes_from(command, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_NUM_THREADS", "1")
    report = command("doctor", "--json").json
    row = next(r for r in report["flags"] if r["name"] == "TILEWRIGHT_NUM_THREADS")
    assert (row["value"], row["origin"]) == (1, "environment")
    assert report["threads"]["used"] == 1
    assert "TILEWRIGHT_NUM_THREADS" in command("doctor").out


def test_doctor_fails_on_a_bad_value(command, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_SIZE", "lots")
    found = command("doctor")
    assert found.code == 1
    assert "problem: TILEWRIGHT_CACHE_SIZE='lots' is invalid" in found.out


FAST = {
    "processor": {
        "arch": "x86_64",
        "features": ["avx2", "avx512f", "avx512bf16"],
        "load": 0.1,
    },
    "threads": {
        "used": 4,
        "processors": [0, 1, 2, 3],
        "cores": 4,
        "governor": "performance",
    },
    "memory_bytes": 8 << 30,
    "huge_pages": "madvise",
    "cache": {},
}


@pytest.mark.parametrize(
    ("part", "value", "text"),
    [
        ("threads.used", 2, "models run on 2 of 4 processors"),
        ("processor.load", 3.0, "the load is 3.0 on 4 processors"),
        ("threads.cores", 2, "4 processors are 2 cores"),
        ("processor.features", ["avx512bf16"], "has no AVX2"),
        ("processor.features", ["avx2", "avx512bf16"], "has no AVX-512"),
        ("processor.features", ["avx2", "avx512f"], "16-bit floats in float32"),
        ("threads.governor", "powersave", "the frequency governor is powersave"),
        ("huge_pages", "never", "transparent huge pages are off"),
        ("memory_bytes", 2 << 30, "less than 4 GiB"),
        ("cache", None, "every start recompiles"),
    ],
)
def test_doctor_says_what_is_slow(part, value, text):
    assert advice(FAST) == []
    report = {k: dict(v) if isinstance(v, dict) else v for k, v in FAST.items()}
    *group, name = part.split(".")
    (report[group[0]] if group else report)[name] = value
    (found,) = advice(report)
    assert text in found


def test_processors_of_one_core_are_one(tmp_path):
    for n, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        folder = tmp_path / f"cpu{n}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings + "\n")
    assert cores(tmp_path, [0, 1, 2, 3]) == 2
    assert cores(tmp_path, [0, 1]) == 2
    assert cores(tmp_path, [0, 7]) is None


def test_the_last_column_fits_the_terminal(monkeypatch):
    rows = [["a", "one two three four five six seven"], ["bc", ""]]
    assert output.table(["n", "what"], rows).count("\n") == 2
    monkeypatch.setattr(output.sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "28")
    lines = output.table(["n", "what"], rows).split("\n")
    assert max(map(len, lines)) <= 28 and len(lines) == 4
    assert lines[2].startswith("    ")
    monkeypatch.setenv("COLUMNS", "10")
    assert output.table(["n", "what"], rows).count("\n") == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_doctor_fails_on_an_unwritable_cache(command, monkeypatch, tmp_path):
    tmp_path.chmod(0o500)
    try:
        found = command("doctor")
    finally:
        tmp_path.chmod(0o700)
    assert found.code == 1 and "cannot be written" in found.out


def test_cache_stat_list_clear(command):
    store = default_store()
    for number in range(3):
        store.put(f"abc{number}", bytes(100))
    stat = command("cache", "stat", "--json").json
    assert stat["entries"] == 3 and Path(stat["root"]) == store.root
    assert len(command("cache", "list", "--json").json) == 3
    listed = command("cache", "list", "--limit", 1)
    assert "3 entries in all" in listed.out
    assert "3 entries" in command("cache", "clear").out
    assert "0" in command("cache", "stat").out
    assert command("cache", "list", "--json").json == []


@pytest.mark.parametrize(
    "key", ["seal-abc", "files-abc", "contents-abc", "sources-abc"]
)
def test_what_is_no_kernel_is_listed_as_what_it_is(command, key):
    default_store().put(key, b"{}")
    (entry,) = command("cache", "list", "--json").json
    assert entry["kind"] != "kernel", entry


def test_the_cache_lists_models_and_kernels_by_name(command, perceptron):
    for _ in range(2):  # compiled, then found
        tw.compile(perceptron)
        listed = command("cache", "list").out
        assert f"model {perceptron.name} " in listed
    before = command("cache", "list", "--json").json
    found = {(e["kind"], e["name"]) for e in before}
    assert ("model", perceptron.name) in found
    kernels = {name for kind, name in found if kind == "kernel"}
    assert kernels and all(kernels), found
    assert command("cache", "list", "--json").json == before  # showing is no use
    with events.record() as happened:
        tw.compile(perceptron)
    assert [e.fields["sealed"] for e in happened if e.kind == "model-cached"] == [True]


def test_cache_switched_off_is_an_error(command, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE", "off")
    found = command("cache", "stat")
    assert found.code == 1 and "TILEWRIGHT_CACHE: the cache is off" in found.err
    assert command("doctor", "--json").json["cache"] is None


def test_bad_usage_of_a_group_is_2(command):
    assert command("cache", "burn").code == 2
    assert command("cache", "list", "--limit", "0").code == 2


def test_doctor_fails_on_a_variable_that_is_no_setting(command, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_NUM_THREAD", "1")
    monkeypatch.setenv("TILEWRIGHT_NUM_THREADS", "1")  # is one
    found = command("doctor")
    assert found.code == 1
    (line,) = [t for t in found.out.splitlines() if "no setting" in t]
    assert "TILEWRIGHT_NUM_THREAD is no setting. Did you mean" in line
    assert "'TILEWRIGHT_NUM_THREADS'?" in line and "warning" not in found.err
