"""The verb `serve`: a process from its first line to Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from urllib.request import urlopen

import pytest

from tests.llm.folders import llama
from tests.waiting import PATIENCE

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

COMMAND = [sys.executable, "-m", "tilewright", "serve"]


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_server_says_where_it_is_and_stops_at_an_interrupt(tmp_path, sent):
    folder = llama(tmp_path / "tiny", num_hidden_layers=1).write().path
    options = ["--port", "0", "--max-clients", "1", "--context", "16", "--json"]
    (tmp_path / "key").write_text("a-secret-key\n")
    options += ["--threads", "1", "--api-key", f"@{tmp_path / 'key'}"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*COMMAND, folder, *options], **pipes) as process:
        try:
            address = json.loads(process.stdout.readline())["address"]
            with urlopen(f"{address}/health", timeout=PATIENCE) as found:
                assert json.load(found)["status"] == "ok"
            process.send_signal(sent)
            _, said = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    # The other signal is sent again once everything is ended.
    interrupted = sent == signal.SIGINT
    assert process.returncode == (0 if interrupted else -signal.SIGTERM)
    # What takes long, as on a busy machine, is told while it lasts.
    lines = said.decode().splitlines()
    told = [line for line in lines if not line.startswith("tilewright: compiling ")]
    assert told == (["tilewright: stopped"] if interrupted else [])


def test_a_key_that_cannot_be_read_is_refused_by_its_option(tmp_path):
    command = [*COMMAND, tmp_path, "--api-key", "@absent"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 2
    said = "tilewright: --api-key: the key cannot be read from 'absent': No such file"
    assert found.stderr.startswith(said) and len(found.stderr.splitlines()) == 1


def test_beyond_this_machine_is_refused_before_anything_is_compiled(tmp_path):
    command = [*COMMAND, tmp_path, "--host", "0.0.0.0"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert found.stderr.startswith(
        "tilewright: serve: 0.0.0.0 is not a loopback address"
    )
    assert "--api-key" in found.stderr
    assert len(found.stderr.splitlines()) == 1
