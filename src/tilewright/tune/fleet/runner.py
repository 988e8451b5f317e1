"""The client's part: jobs go out to the devices of a fleet, measurements come in as they are done.

The engine repeats the jobs of a worker that is gone on another one; a job is one result, once.
"""

from __future__ import annotations

import hashlib
import queue
import time
import uuid
import warnings
from asyncio import CancelledError
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tilewright.base import events
from tilewright.base.errors import ExecutionError, InputError
from tilewright.base.text import listing
from tilewright.tune.base import Job, Measurement, Status
from tilewright.tune.fleet import bench, engine
from tilewright.tune.fleet.device import FleetDevice, Offered, chosen
from tilewright.tune.measure.options import Limits, Timing

_CONNECT: Final = 10  # seconds until a scheduler that does not answer is given up
_LOOK: Final = 0.5  # seconds between looks at who is still there


@dataclass
class _Sent:
    """Jobs on their way.

    futures: the engine's, by its keys, with the job of each. done: keys of those that came to an
    end. served: when a worker was there last, in seconds.
    """

    futures: dict[str, tuple[Any, Job]] = field(default_factory=dict)
    done: queue.SimpleQueue[str] = field(default_factory=queue.SimpleQueue)
    served: float = field(default_factory=time.monotonic)


class Fleet:
    """A connection to a scheduler. address, keys: as for `FleetRunner`, with its errors."""

    def __init__(self, address: str, keys: Path | None = None) -> None:
        self.address = engine.checked(address, keys)
        try:
            self.client = engine.distributed().Client(
                self.address,
                security=engine.security(keys),
                timeout=_CONNECT,
                set_as_default=False,
            )
        except (OSError, TimeoutError, ValueError) as error:
            why = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ExecutionError(
                f"no scheduler answers at {self.address}: {why}",
                where="fleet",
                hint="check the address, and that all have the same keys",
            ) from None

    @property
    def offered(self) -> Offered:
        """All devices, with how many places there are of each.

        Raises ExecutionError where the scheduler is gone.
        """
        found: Counter[FleetDevice] = Counter()
        # In newer versions of the engine the default is a part of the workers.
        about = self.client.scheduler_info(n_workers=-1)
        # A client that lost its scheduler, before or while it asks, gives an old answer or none.
        if self.client.status != "running" or "workers" not in about:
            raise ExecutionError(
                f"the scheduler at {self.address} is gone",
                where="fleet",
                hint="start it again; what was measured is kept",
            )
        for worker in about["workers"].values():
            for resource, count in worker.get("resources", {}).items():
                device = FleetDevice.parse(resource)
                if device is not None:
                    found[device] += int(count)
        return found

    def close(self) -> None:
        """Take leave of the scheduler; its workers stay."""
        with suppress(Exception):  # it may be gone already
            self.client.close()


class FleetRunner:
    """Measures on the devices of one name that the workers of a fleet offer.

    address: of the scheduler. device: the name. threads: of every program. keys: the folder of the
    fleet's keys; without it only on this machine. patience: seconds to wait for a worker that
    offers the device, at first and whenever there is none. Raises InputError for a bad address, for
    a device that nobody offers, and for one of another version; ExecutionError where nobody answers
    or the keys are others.
    """

    def __init__(
        self,
        address: str,
        device: str = "cpu",
        *,
        threads: int = 1,
        keys: Path | None = None,
        timing: Timing | None = None,
        limits: Limits | None = None,
        patience: float = 60.0,
    ) -> None:
        self.name, self.threads, self.patience = device, threads, patience
        self._how = bench.settings(threads, timing or Timing(), limits or Limits())
        self._run = uuid.uuid4().hex[:12]
        self._count = 0
        self._references: dict[bytes, Any] = {}
        self.fleet = Fleet(address, keys)
        try:
            self.device = self._wait_for_device()
        except BaseException:
            self.close()
            raise

    @property
    def slots(self) -> int:
        """Places of the device at this moment. Raises ExecutionError as `Fleet.offered` does."""
        return self.fleet.offered.get(self.device, 0)

    def measure(self, jobs: Iterable[Job]) -> Iterator[tuple[int, Measurement]]:
        """The number of each job with its measurement, as they come in.

        A job is asked for when a place is free. One that a worker died with several times is LOST.
        Raises ExecutionError where the scheduler is gone, or no worker offers the device for as
        long as `patience`; what came in before was given out.
        """
        waiting = iter(jobs)
        sent = _Sent()
        more = True
        try:
            while True:
                while more and len(sent.futures) < max(1, self.slots):
                    job = next(waiting, None)
                    more = job is not None
                    if job is not None:
                        self._send(job, sent)
                if not sent.futures:
                    return
                key = self._next(sent)
                future, job = sent.futures[key]
                found = _measurement(future, job)
                if found is None:
                    self._expect_worker(sent)
                    sent.done.put(key)
                    continue
                del sent.futures[key]
                events.emit("measured", number=job.number, status=str(found.status))
                yield job.number, found
                sent.served = time.monotonic()  # whoever asks may have taken long
        finally:
            for future, _ in sent.futures.values():  # nobody waits for these any more
                with suppress(Exception):
                    future.cancel()

    def close(self) -> None:
        """Take leave of the scheduler; its workers stay."""
        self._references.clear()
        self.fleet.close()

    def _send(self, job: Job, sent: _Sent) -> None:
        self._count += 1
        key = f"measure-{self._run}-{self._count}"
        expected = self._reference(job.expected)
        with warnings.catch_warnings():
            # Programs carry their weights: that a job has megabytes is not a mistake.
            warnings.filterwarnings("ignore", "Sending large graph")
            future = self.fleet.client.submit(
                bench.measure,
                self._how,
                job.artifact,
                expected,
                key=key,
                pure=False,
                resources={self.device.resource: 1},
            )
        sent.futures[key] = future, job
        future.add_done_callback(lambda f: sent.done.put(f.key))

    def _reference(self, data: bytes) -> Any:
        """Sent once, and made anew by the engine where the worker that had it is gone."""
        if not data:
            return data
        digest = hashlib.sha256(data).digest()
        if digest not in self._references:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Sending large graph")
                name = f"reference-{self._run}-{digest.hex()[:16]}"
                made = self.fleet.client.submit(
                    bench.reference, data, key=name, pure=False
                )
            self._references[digest] = made
        return self._references[digest]

    def _next(self, sent: _Sent) -> str:
        """The key of a job that is done."""
        while True:
            with suppress(queue.Empty):
                return sent.done.get(timeout=_LOOK)
            self._expect_worker(sent)

    def _expect_worker(self, sent: _Sent) -> None:
        now = time.monotonic()
        if self.slots:
            sent.served = now
        if now - sent.served > self.patience:
            raise ExecutionError(
                f"no worker has offered {self.device} for {self.patience:g} s",
                where="fleet",
                hint="start one; what was measured is kept",
            )

    def _wait_for_device(self) -> FleetDevice:
        end = time.monotonic() + self.patience
        while True:
            offered = self.fleet.offered
            found = chosen(offered, self.name, self.threads)
            if found is not None:
                return found
            if time.monotonic() > end:
                known = listing(sorted(map(str, offered))) or "none"
                raise InputError(
                    f"no worker offers the device {self.name!r}",
                    where=self.fleet.address,
                    hint=f"the devices are {known}",
                )
            time.sleep(_LOOK / 5)


def _measurement(future: Any, job: Job) -> Measurement | None:
    """What became of a job; None where that is not known yet.

    A result stays with its worker until it is fetched, and the engine does a job again whose
    worker went before. Raises ExecutionError where the scheduler forgot it.
    """
    status = future.status
    if status in ("finished", "pending", "lost"):
        try:
            data = future.result(timeout=_LOOK)
        except (Exception, CancelledError) as error:
            if isinstance(error, TimeoutError) or future.status != "finished":
                return None
            raise
        return bench.received(data, job.build_seconds)
    if status == "error":
        reason = str(future.exception()).splitlines()
        lost = f"it was lost: {reason[0] if reason else 'without a reason'}"
        return Measurement(Status.LOST, reason=lost, build_seconds=job.build_seconds)
    raise ExecutionError(
        f"the scheduler gave up job {job.number}: it is {status}",
        where="fleet",
        hint="was it restarted? What was measured is kept",
    )
