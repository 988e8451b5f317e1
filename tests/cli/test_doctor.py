"""`tilewright doctor` and `tilewright cache`: facts, problems, exit codes."""

import os
from pathlib import Path

import pytest

from tilewright.base import flags
from tilewright.base.store import default_store
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


def test_cache_switched_off_is_an_error(command, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE", "off")
    found = command("cache", "stat")
    assert found.code == 1 and "TILEWRIGHT_CACHE: the cache is off" in found.err
    assert command("doctor", "--json").json["cache"] is None


def test_bad_usage_of_a_group_is_2(command):
    assert command("cache", "burn").code == 2
    assert command("cache", "list", "--limit", "0").code == 2
