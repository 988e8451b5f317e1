"""`tilewright fleet`: keys, bad options, and the devices of a fleet."""

from __future__ import annotations

import pytest

from tilewright.runtime.machine import processor_name

pytest.importorskip("distributed")


def test_keys(command, tmp_path):
    found = command("fleet", "keys", tmp_path / "mine")
    assert found.code == 0
    assert "copy it to every machine" in found.out
    again = command("fleet", "keys", tmp_path / "mine")
    assert again.code == 1
    assert "the folder is not empty" in again.err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("worker", "127.0.0.1:1", "--device", "cpu"), 2, "expected NAME=COUNT"),
        (("worker", "127.0.0.1:1", "--device", "cpu=0"), 2, "expected NAME=COUNT"),
        (("worker", "127.0.0.1:1", "--device", "c|u=1"), 1, "not a valid device name"),
        (("worker", "127.0.0.1"), 2, "not a scheduler address"),
        (("worker", "10.0.0.1:8786"), 1, "there are no keys"),
        (("scheduler", "--host", "0.0.0.0"), 1, "there are no keys"),
        (("scheduler", "--keys", "nowhere"), 1, "there is no authority.pem"),
        (("scheduler", "--port", "70000"), 2, "70000"),
        (("status", "tls://127.0.0.1:1"), 1, "does not fit connections without keys"),
    ],
)
def test_what_is_refused(command, arguments, code, message):
    found = command("fleet", *arguments)
    assert found.code == code
    assert message in found.err


def test_the_devices_of_a_fleet(command):
    from tilewright.tune.fleet.local import LocalFleet

    with LocalFleet(1) as fleet:
        (shown,) = command("fleet", "status", fleet.address, "--json").json
        text = command("fleet", "status", fleet.address).out
    assert (shown["device"], shown["places"], shown["threads"]) == ("cpu", 1, 1)
    assert processor_name() in text
