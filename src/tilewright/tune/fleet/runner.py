"""The client's side: send jobs to the devices of a fleet, receive measurements as they finish.

Dask repeats the jobs of a lost worker on another one; each job has exactly one result.
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
from dataclasses import field
from pathlib import Path
from typing import Any, Final

from tilewright.base import events
from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ExecutionError, InputError
from tilewright.base.text import listing
from tilewright.tune.base import Job, Measurement, Status
from tilewright.tune.fleet import bench, engine
from tilewright.tune.fleet.device import FleetDevice, Offered, chosen
from tilewright.tune.measure.options import Limits, Timing

_CONNECT: Final = 10  # seconds to wait for the scheduler's answer
_LOOK: Final = 0.5  # seconds between checks for workers


@dataclass
class _Sent:
    """Jobs in progress.

    futures: Dask's futures by key, with the job of each. done: keys of finished jobs. served: the
    last time a worker was available, in seconds.
    """

    futures: dict[str, tuple[Any, Job]] = field(default_factory=dict)
    done: queue.SimpleQueue[str] = field(default_factory=queue.SimpleQueue)
    served: float = field(default_factory=time.monotonic)


class Fleet:
    """A connection to a scheduler. address, keys: as for `FleetRunner`, with its errors."""

    def __init__(self, address: str, keys: Path | None = None) -> None:
        self.address = engine.checked(address, keys)
        distributed = engine.distributed()
        try:
            engine.expect_open(self.address, _CONNECT)
            self.client = distributed.Client(
                self.address,
                security=engine.security(keys),
                timeout=_CONNECT,
                set_as_default=False,
            )
        except (OSError, TimeoutError, ValueError) as error:
            text = getattr(error, "strerror", None) or str(error)
            why = text.splitlines()[0] if text else type(error).__name__
            raise ExecutionError(
                f"no scheduler answers at {self.address}: {why}",
                where="fleet",
                hint="check the address, that `tilewright fleet scheduler` runs there, and that "
                "all have the same keys",
            ) from None

    @property
    def offered(self) -> Offered:
        """All devices, with the number of places of each.

        Raises ExecutionError if the scheduler is gone.
        """
        found: Counter[FleetDevice] = Counter()
        # Newer versions of Dask list only some of the workers by default.
        about = self.client.scheduler_info(n_workers=-1)
        # A client that loses its scheduler returns an old answer or none.
        if self.client.status != "running" or "workers" not in about:
            raise ExecutionError(
                f"the scheduler at {self.address} is gone",
                where="fleet",
                hint="start it again; finished measurements are kept",
            )
        for worker in about["workers"].values():
            for resource, count in worker.get("resources", {}).items():
                device = FleetDevice.parse(resource)
                if device is not None:
                    found[device] += int(count)
        return found

    def close(self) -> None:
        """Disconnect from the scheduler; its workers stay."""
        with suppress(Exception):  # it may be gone already
            self.client.close()


class FleetRunner:
    """Measures on the devices of one name that the workers of a fleet offer.

    address: of the scheduler. device: the name. threads: of every program. keys: the folder with
    the fleet's keys; without it, only this machine can be used. patience: seconds to wait for a
    worker that offers the device, at the start and whenever there is none. Raises InputError for a
    bad address, and for a device that no worker offers or that has another version; ExecutionError
    if no scheduler answers or it has other keys.
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
        """The current number of places of the device. Raises as `Fleet.offered` does."""
        return self.fleet.offered.get(self.device, 0)

    def measure(self, jobs: Iterable[Job]) -> Iterator[tuple[int, Measurement]]:
        """The number of each job with its measurement, as they finish.

        A job is requested when a place is free. A job whose workers died several times is LOST.
        Raises ExecutionError if the scheduler is gone, or no worker offers the device for
        `patience` seconds; earlier measurements have been yielded by then.
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
                sent.served = time.monotonic()  # the consumer may have taken long
        finally:
            for future, _ in sent.futures.values():  # abandoned by the consumer
                with suppress(Exception):
                    future.cancel()

    def close(self) -> None:
        """Disconnect from the scheduler; its workers stay."""
        self._references.clear()
        self.fleet.close()

    def _send(self, job: Job, sent: _Sent) -> None:
        self._count += 1
        key = f"measure-{self._run}-{self._count}"
        expected = self._reference(job.expected)
        with warnings.catch_warnings():
            # Programs contain their weights: jobs of megabytes are intended.
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
        """Send a reference once; Dask recomputes it if the worker that had it is gone."""
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
        """Wait for a job to finish; returns its key."""
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
                hint="start one; finished measurements are kept",
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
    """The measurement of a job; None if it is not known yet.

    A result stays on its worker until it is fetched, and Dask repeats a job if its worker
    disappears before that. Raises ExecutionError if the scheduler has dropped the job.
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
        lost = f"lost: {reason[0] if reason else 'unknown reason'}"
        return Measurement(Status.LOST, reason=lost, build_seconds=job.build_seconds)
    raise ExecutionError(
        f"the scheduler dropped job {job.number}: it is {status}",
        where="fleet",
        hint="was it restarted? Finished measurements are kept",
    )
