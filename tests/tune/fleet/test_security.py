"""Who takes part in a fleet: this machine, or whoever has its keys."""

from __future__ import annotations

import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import until
from tilewright.base.errors import ExecutionError, InputError, UnsupportedError
from tilewright.tune.base import Measurement, Status
from tilewright.tune.fleet import engine, keys, server
from tilewright.tune.fleet.bench import measure, received
from tilewright.tune.fleet.runner import Fleet

pytest.importorskip("distributed")
pytest.importorskip("cryptography")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    made = tmp_path_factory.mktemp("keys")
    for name in ("ours", "others"):
        keys.make(made / name)
    return made / "ours", made / "others"


@pytest.fixture(scope="module")
def address(folders: tuple[Path, Path]) -> Iterator[str]:
    """A scheduler that wants keys."""
    import asyncio

    said: list[str] = []
    ended = asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with engine.distributed().Scheduler(
            host=engine.LOOPBACK,
            port=0,
            protocol=engine.ENCRYPTED,
            security=engine.security(folders[0]),
            dashboard=False,
        ) as made:
            said.append(made.address)
            await ended.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    until(lambda: said)
    yield said[0]
    loop.call_soon_threadsafe(ended.set)
    thread.join()
    loop.close()


def test_who_has_the_keys_takes_part(folders: tuple[Path, Path], address: str) -> None:
    fleet = Fleet(address, folders[0])
    assert fleet.offered == {}
    fleet.close()


def test_who_has_other_keys_is_refused(
    folders: tuple[Path, Path], address: str
) -> None:
    with pytest.raises(ExecutionError, match="no scheduler answers at tls://127"):
        Fleet(address, folders[1])


def test_who_has_no_keys_is_refused(address: str) -> None:
    with pytest.raises(InputError, match="does not fit connections without keys"):
        Fleet(address)
    plain = address.replace("tls://", "tcp://")
    with pytest.raises(ExecutionError, match="no scheduler answers at tcp://127"):
        Fleet(plain)
    # Not even by the engine itself, encrypted but unknown.
    with pytest.raises((OSError, ValueError, TypeError)):
        distributed = engine.distributed()
        distributed.Client(address, security=distributed.Security(), timeout=5)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.2", "::", "fleet.example"])
def test_beyond_this_machine_keys_are_needed(host: str) -> None:
    with pytest.raises(InputError, match="beyond this machine, and there are no keys"):
        server.run_scheduler(print, host, 0)
    shown = f"[{host}]" if ":" in host else host
    with pytest.raises(InputError, match="beyond this machine, and there are no keys"):
        server.run_worker(print, f"tcp://{shown}:8786", server.Places("cpu"))
    with pytest.raises(InputError, match="beyond this machine, and there are no keys"):
        Fleet(f"{shown}:8786")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "::1"])
def test_this_machine_needs_none(host: str) -> None:
    engine.expect_safe(host, None)


@pytest.mark.parametrize(
    "address", ["", "127.0.0.1", "tcp://", "tcp://127.0.0.1:port", "a:1/b", "x:99999"]
)
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(InputError, match="is not a scheduler address"):
        engine.checked(address, None)


def test_keys_are_for_the_user_alone(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "keys"
    keys.make(folder)
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in folder.iterdir()}
    assert modes == dict.fromkeys((keys.AUTHORITY, keys.CERTIFICATE, keys.KEY), 0o600)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    before = (folder / keys.KEY).read_bytes()
    with pytest.raises(InputError, match="the folder is not empty"):
        keys.make(folder)
    assert (folder / keys.KEY).read_bytes() == before

    (folder / keys.KEY).chmod(0o644)
    with pytest.raises(InputError, match=r"key.pem can be read by others"):
        keys.found(folder)
    (folder / keys.KEY).chmod(0o600)
    folder.chmod(0o777)
    with pytest.raises(InputError, match="the keys are not private"):
        keys.found(folder)
    folder.chmod(0o700)
    (folder / keys.CERTIFICATE).unlink()
    with pytest.raises(InputError, match=r"there is no certificate.pem"):
        keys.found(folder)


def test_without_the_engine_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("distributed", "dask"):
        monkeypatch.setitem(sys.modules, name, None)
    needed = r"needs the package distributed.*tilewright\[fleet\]"
    with pytest.raises(UnsupportedError, match=needed):
        server.run_scheduler(print, port=0)
    with pytest.raises(UnsupportedError, match=needed):
        server.run_worker(print, "127.0.0.1:1", server.Places("cpu"))
    with pytest.raises(UnsupportedError, match=needed):
        Fleet("127.0.0.1:1")


def test_this_process_is_no_worker() -> None:
    with pytest.raises(ExecutionError, match="is not a worker"):
        measure({}, b"", b"")


def test_after_its_work_a_process_is_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise ExecutionError("no scheduler answers")

    monkeypatch.setattr(server, "_worker", refused)
    with pytest.raises(ExecutionError, match="no scheduler answers"):
        server.run_worker(print, "127.0.0.1:1", server.Places("cpu"))
    test_this_process_is_no_worker()


GOOD = ("ok", (1e-3, 2e-3), "", 1.0, 0.0, 0.5)


def test_what_a_worker_sends() -> None:
    expected = Measurement(Status.OK, (1e-3, 2e-3), "", 1.0, 7.0, 0.5)
    assert received(GOOD, 7.0) == expected


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        GOOD[:3],
        ("fast", *GOOD[1:]),
        ("ok", (), *GOOD[2:]),
        ("crash", *GOOD[1:]),
        ("ok", (float("nan"),), *GOOD[2:]),
        ("ok", (-1.0,), *GOOD[2:]),
        ("ok", ("1",), *GOOD[2:]),
        (*GOOD[:2], 5, *GOOD[3:]),
        (*GOOD[:3], float("inf"), *GOOD[4:]),
    ],
)
def test_what_is_no_measurement(wrong: object) -> None:
    with pytest.raises(InputError, match="an invalid measurement"):
        received(wrong, 0.0)
