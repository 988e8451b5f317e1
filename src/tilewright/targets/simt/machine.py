"""A SIMT machine as schedules see it: threads in blocks, memory that a block shares.

A row of MACHINES is a kind of device; a description replaces single fields. Figures are typical of
such a device: they decide schedules, while launches are checked against the limits that the device
reports (`resources.py`, `runtime.device`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Final, TypeVar

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError, UnsupportedError
from tilewright.base.text import did_you_mean, listing


@dataclass(frozen=True, slots=True)
class SimtMachine:
    """One kind of device.

    units: that run blocks at the same time. warp: threads in step; 1 if none are. unit_threads,
    unit_blocks: at once on a unit. block_threads: of a block, at most; usual_threads: of one that
    nothing says more about. shared: bytes that a block may have; shared_pays: whether they are
    faster than the caches. banks: of 4 bytes, of shared memory. registers: of a unit, of 4 bytes;
    thread_registers: of a thread, at most. vector_bytes: of one load. constant: bytes of constant
    memory. bandwidth, cache_bandwidth: of the device's memory, and of the cache that all units
    share, in bytes per nanosecond. shared_rate: bytes per nanosecond of a unit's shared memory, or
    of its cache. rate: float32 multiply-adds of a unit per nanosecond. launch_ns: of a launch by
    itself. async_copies: whether memory is copied into shared memory while threads go on;
    bulk_copies: whether one thread can copy a box of a tensor, and neighboring blocks can be a
    cluster. any_order: whether blocks may add
    floats to one element in the order in which they come, so that results may differ from run to
    run in their last bits: `math="fast"` allows it, and the tuner may choose it then. subgroups:
    whether threads in step are an OpenCL subgroup, and exchange registers by its functions.
    """

    name: str
    units: int
    warp: int
    unit_threads: int
    unit_blocks: int
    block_threads: int
    usual_threads: int
    shared: int
    shared_pays: bool
    banks: int
    registers: int
    thread_registers: int
    vector_bytes: int
    constant: int
    bandwidth: float
    cache_bandwidth: float
    shared_rate: float
    rate: float
    launch_ns: float
    async_copies: bool = False
    bulk_copies: bool = False
    any_order: bool = False
    subgroups: bool = False

    @property
    def own_room(self) -> int:
        """Bytes of shared memory that each thread may have if as many as possible run at once."""
        return self.shared // self.unit_threads


_K: Final = 1 << 10
OWN_BYTES: Final = 16 * _K  # of an array that a thread has for itself, at most

# The least that OpenCL 1.2 promises of a full profile, and sizes that every GPU of today has.
GENERIC: Final = SimtMachine(
    name="generic",
    units=16,
    warp=1,
    unit_threads=1024,
    unit_blocks=16,
    block_threads=256,
    usual_threads=64,
    shared=32 * _K,
    shared_pays=True,
    banks=32,
    registers=64 * _K,
    thread_registers=128,
    vector_bytes=16,
    constant=64 * _K,
    bandwidth=200.0,
    cache_bandwidth=600.0,
    shared_rate=128.0,
    rate=64.0,
    launch_ns=10_000.0,
)
# A processor: a block is a loop on one core, and shared memory is memory like any other.
POCL: Final = replace(
    GENERIC,
    name="pocl",
    units=2,
    unit_threads=4096,
    unit_blocks=1,
    block_threads=4096,
    shared_pays=False,
    shared=1 << 20,
    vector_bytes=32,
    bandwidth=20.0,
    cache_bandwidth=60.0,
    shared_rate=100.0,
    rate=16.0,
    launch_ns=30_000.0,
)
# A mobile GPU of Arm's Midgard and Bifrost families (Mali-T6xx to G7x): vectors of four floats,
# shared memory that is in the cache, and full occupancy only up to half of the registers. After
# Arm's "OpenCL developer guide for Mali GPUs" and Lift's measurements on a Mali-G71.
MALI: Final = replace(
    GENERIC,
    name="mali",
    units=8,
    unit_threads=384,
    block_threads=384,
    usual_threads=64,
    shared_pays=False,
    registers=24 * _K,
    thread_registers=64,
    bandwidth=15.0,
    cache_bandwidth=60.0,
    shared_rate=16.0,
    rate=24.0,
    launch_ns=100_000.0,
)
MACHINES: Final[Mapping[str, SimtMachine]] = {m.name: m for m in (GENERIC, POCL, MALI)}


def described(given: Mapping[str, Any] | None) -> SimtMachine:
    """The machine of a description: `like`, a name of MACHINES, and fields that differ.

    Raises UnsupportedError for an unknown name; InputError, which names the field, for one that is
    unknown or has no sensible value, and for subgroups of one thread.
    """
    table = dict(given or {})
    like = table.pop("like", GENERIC.name)
    if like not in MACHINES:
        raise UnsupportedError(
            f"unknown machine {like!r}",
            code="TW-MACHINE",
            hint=f"known: {listing(list(MACHINES))}",
        )
    base = MACHINES[like]
    known = {f.name: type(getattr(base, f.name)) for f in fields(base)}
    for name, value in table.items():
        _check(name, value, known)
    made = replace(base, **table)
    if made.subgroups and made.warp == 1:
        raise InputError(
            "subgroups is true, but no threads are in step",
            hint="say in warp how many threads a subgroup has, or leave subgroups out",
        )
    return made


def _check(name: str, value: Any, known: Mapping[str, type]) -> None:
    if name not in known:
        raise InputError(
            f"{name} is not a field of a machine description",
            hint=did_you_mean(name, known),
        )
    kind = known[name]
    fits = type(value) is kind or (kind is float and type(value) is int)
    if not fits or (kind in (int, float) and not value > 0):
        raise InputError(
            f"{name} is {value!r}", hint=f"expected {_EXPECTED[kind]}, or leave it out"
        )


_EXPECTED: Final = {
    int: "an integer of at least 1",
    float: "a number above 0",
    bool: "true or false",
    str: "a text",
}


_Architecture = TypeVar("_Architecture")


def architecture(
    known: Mapping[str, _Architecture], name: str, usual: str
) -> _Architecture:
    """A vendor's architecture by name; "native" is the default one.

    Raises UnsupportedError (TW-MCPU) for an unknown one.
    """
    found = known.get(usual if name == "native" else name)
    if found is None:
        raise UnsupportedError(
            f"unknown GPU architecture {name!r}",
            code="TW-MCPU",
            hint=f"known: {', '.join(known)}",
        )
    return found
