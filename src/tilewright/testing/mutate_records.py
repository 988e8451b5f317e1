"""Damaged records: kernels in the cache, results, traces of schedules, derivations.

Each is a mutant of the compiler's output, read as the compiler does; only a TilewrightError may
reject it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Final

from tilewright.testing.mutate_json import mutated, written

Reader = Callable[[bytes, Path], None]


@cache
def _valid() -> Mapping[str, Any]:
    """A valid record of each kind, as JSON."""
    from tilewright.dataflow.results import ExploredPoint
    from tilewright.driver.compiled import CompiledGroup, Preparation
    from tilewright.runtime.packing import Packing, PackingPart

    part = PackingPart(
        extents=(4, 8),
        reads=(0,),
        strides=(8, 1),
        steps=(("scale", 0, 2.0),),
        writes=((1, 0),),
        into=(8, 1),
    )
    pack = Preparation(
        symbol="pack",
        inputs=(0, -1),
        shape=(4, 8),
        dtype="float32",
        workspace=64,
        packing=Packing((part,)),
    )
    group = CompiledGroup(
        symbol="k",
        arguments=(0, -1),
        workspace=64,
        thread_workspace=0,
        preparations=(pack,),
        code=b"code",
        prepare_code=(b"more",),
        in_place=(0,),
    )
    header, _, _ = group.to_bytes().partition(b"\n")
    point = ExploredPoint(
        ("a", "b"), 16, "work", ("work",), 100, 10, 3, 4, 2.0, 0.5, 1.5, 1.25
    )
    return {
        "group": json.loads(header),
        "results": asdict(point),
        "trace": [
            ["split", ["i", 4], {"names": ["a", "b"]}],
            ["vectorize", ["b"], {}],
        ],
        "derivation": {
            "start": "fun(x: f32[4]) -> x",
            "steps": [{"rule": "id", "at": "/", "n": 2}],
        },
    }


def _group(data: bytes, folder: Path) -> None:
    from tilewright.driver.compiled import CompiledGroup

    try:
        found = CompiledGroup.from_bytes(data + b"\ncodemore")
    except (ValueError, RecursionError):  # what the cache takes for absent
        return
    if CompiledGroup.from_bytes(found.to_bytes()) != found:
        raise AssertionError("it does not survive a round trip")


def _results(data: bytes, folder: Path) -> None:
    from tilewright.dataflow.results import ResultStore

    path = folder / "results.jsonl"
    path.write_bytes(b'{"s": 1}\n' + data + b"\n")
    store = ResultStore(path)
    store.open({"s": 1})
    sorted((p.pes, p.costs) for p in store.known.values())


def _trace(data: bytes, folder: Path) -> None:
    from tilewright.schedule.trace import Trace

    str(Trace.from_json(data.decode("utf-8", "replace")))


def _derivation(data: bytes, folder: Path) -> None:
    from tilewright.lift.derive import replay
    from tilewright.lift.rules import RULES

    replay(data.decode("utf-8", "replace"), RULES)


READERS: Final[Mapping[str, Reader]] = {
    "group": _group,
    "results": _results,
    "trace": _trace,
    "derivation": _derivation,
}


def make(rng: Random, kind: str) -> tuple[bytes, str]:
    """A damaged record, and the damage."""
    value, damage = mutated(rng, {"record": _valid()[kind]})
    data = bytearray(written(json.dumps(value.get("record"))))
    if rng.random() < 0.1:
        at = rng.randrange(len(data))
        data[at] = rng.randrange(256)
        damage += f"; byte {at}"
    return bytes(data), damage
