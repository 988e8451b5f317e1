"""Damaged artifacts, cache entries, records, machines: each is read, or rejected with a
TilewrightError.

`run(seed)` makes one mutant of a valid file, corrects its checksums so that the damage is reached,
and reads it as users do. Any end but success or a TilewrightError is a failure. Native code of a
mutant is loaded but never called; a model without native code is called.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
import traceback
import warnings
import zipfile
from collections.abc import Callable, Mapping
from functools import cache
from io import BytesIO
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any, Final

import numpy as np

from tilewright.base.dtypes import dtype_of, float32
from tilewright.base.errors import TilewrightError
from tilewright.base.store import FileStore
from tilewright.frontends.onnx.author import Author
from tilewright.runtime import bundle, digest
from tilewright.runtime.executable import Executable
from tilewright.runtime.model import (
    CompiledModel,
    CopyStep,
    HostFallbackStep,
    Tensor,
    ValueSlot,
)
from tilewright.runtime.packed import PackedConstant
from tilewright.runtime.packing import Packing, PackingPart
from tilewright.testing import mutate_records
from tilewright.testing.mutants import MutantFailure
from tilewright.testing.mutate_json import mutated, written

_MARK: Final = b"tilewright-artifact "
_ODD_NAMES: Final = (
    "/manifest.json", "../manifest.json", "manifest.json", "constants.bin", "objects/00.o",
    "objects/-1.o", "support/1.o", "objects/", "objects/0.o/x", "\\x", "a" * 300, "é\0",
)  # fmt: skip


def run(seed: int) -> MutantFailure | None:
    """Make and read the mutant number `seed`."""
    rng = Random(seed)
    kind = rng.choices(list(_KINDS), [weight for *_, weight in _KINDS.values()])[0]
    make, read, _ = _KINDS[kind]
    data, damage = make(rng)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            read(rng, data, Path(folder))
        except TilewrightError:
            return None
        except Exception:
            error = traceback.format_exc(limit=-8)
            return MutantFailure(
                seed=seed,
                base=kind,
                damage=damage,
                error=error,
            )
    return None


# --------------------------------------------------------------------------------- artifacts


@cache
def _artifacts() -> tuple[dict[str, bytes], ...]:
    """The members of valid artifacts: native code, host fallbacks, a device, none of them."""
    from tilewright.driver import compile as compile_model

    sources = (_dense(), _odd())
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # one of them runs a host fallback, which is reported
        compiled = [compile_model(source, threads=2, cache=False) for source in sources]
    models = [exe.model for exe in compiled if isinstance(exe, Executable)]
    steps = chain.from_iterable(model.steps for model in models)
    assert any(isinstance(step, HostFallbackStep) for step in steps)
    return tuple(_members(model) for model in (*models, _copies()))


def _dense() -> bytes:
    """A model that is one native call with weights."""
    a = Author("dense")
    a.input("x", float32, (4, 6))
    a.weight("w", np.arange(18, dtype=np.float32).reshape(6, 3))
    product = a.node("MatMul", ["x", "w"], "h")
    result = a.node("Relu", [product], "y")
    a.output(result, float32, (4, 3))
    return a.model()


def _odd() -> bytes:
    """A model with a host fallback between native calls, and a result of unknown shape."""
    a = Author("odd")
    a.input("x", float32, (5,))
    exponential = a.node("Exp", ["x"], "e")
    result = a.node("Unique", [exponential], "u", sorted=1)
    a.output(result, float32, (None,))
    return a.model()


def _copies() -> CompiledModel:
    """A model without code, of whose constants half are packed when it is read."""
    x = Tensor("x", "float32", (3,))
    y = Tensor("y", "string", (2,))
    kept = ValueSlot("object", 0, y)
    steps = (
        CopyStep(ValueSlot("input", 0, x), ValueSlot("arena", 64, x)),
        CopyStep(ValueSlot("arena", 64, x), ValueSlot("output", 0, x)),
        CopyStep(ValueSlot("constant", 64, x), ValueSlot("output", 1, x)),
        CopyStep(ValueSlot("input", 1, y), kept),
        CopyStep(kept, ValueSlot("output", 2, y)),
    )
    weight = np.arange(16, dtype=np.float32)
    total = weight[:8] + weight[8:]
    block = np.concatenate([weight, total, total / 2])
    part = PackingPart(
        extents=(2, 4),
        reads=(0, 8),
        strides=(4, 1),
        steps=(
            ("add", 0, 1),
            ("scale", 2, 0.5),
        ),
        writes=(
            (2, 0),
            (3, 8),
        ),
        into=(4, 1),
    )
    packed = PackedConstant(
        at=64,
        weight=-1,
        weight_bytes=64,
        dtype="float32",
        packing=Packing((part,)),
    )
    return CompiledModel(
        (x, y),
        (x, x, y),
        steps,
        constants=block.view(np.uint8),
        packed=(packed,),
        weights=(weight.view(np.uint8),),
        arena_bytes=128,
        object_slots=1,
    )


def _members(model: CompiledModel) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.tw"
        bundle.save(model, path)
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name) for name in archive.namelist()}


def _artifact(rng: Random) -> tuple[bytes, str]:
    members = dict(rng.choice(_artifacts()))
    way = rng.choice(
        ("manifest", "manifest", "manifest", "object", "zip", "zip", "bytes")
    )
    if way == "manifest":
        head, damage = mutated(rng, json.loads(members["manifest.json"]))
        return _zipped(members, head), damage
    head = json.loads(members["manifest.json"])
    if way == "object":
        damage = _damaged_object(rng, members, head)
        return _zipped(members, head), damage
    if way == "zip":
        return _odd_zip(rng, members, head)
    data = bytearray(_zipped(members, head))
    places = [rng.randrange(len(data)) for _ in range(rng.randint(1, 8))]
    for at in places:
        data[at] = rng.randrange(256)
    cut = rng.choice(
        (
            len(data),
            len(data),
            rng.randrange(len(data)),
        )
    )
    return bytes(data[:cut]), f"bytes {places}, {cut} of {len(data)}"


def _zipped(members: Mapping[str, bytes], head: Any) -> bytes:
    """The file, as `bundle.save` lays it out, with checksums that fit."""
    buffer = BytesIO()
    text = written(json.dumps(head))
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in members.items():
            if name == "constants.bin":
                bundle._add(archive, {}, name, [memoryview(data)], 4096)
            elif name != "manifest.json":
                archive.writestr(name, data)
        archive.writestr("manifest.json", text)
        archive.comment = _MARK + hashlib.sha256(text).hexdigest().encode()
    return buffer.getvalue()


def _damaged_object(
    rng: Random,
    members: dict[str, bytes],
    head: Any,
) -> str:
    """Flip bytes of an object's headers and tables, and make its digest right."""
    names = [name for name in members if name.endswith(".o")]
    if not names:
        return "nothing"
    name = rng.choice(names)
    data = bytearray(members[name])
    places = []
    for _ in range(rng.randint(1, 6)):
        # The header is at the beginning, the tables of sections and symbols near the end.
        at = rng.choice(
            (rng.randrange(64), len(data) - 1 - rng.randrange(len(data) // 2))
        )
        data[at] = rng.choice((0, 1, 0xFF, 0x80, rng.randrange(256)))
        places.append(at)
    if rng.random() < 0.9:
        cut = len(data)
    else:
        cut = rng.randrange(len(data))
    members[name] = bytes(data[:cut])
    head["members"][name] = {"size": cut, "digest": digest.of_bytes(members[name])}
    return f"{name} at {places}, {cut} bytes"


def _odd_zip(
    rng: Random,
    members: dict[str, bytes],
    head: Any,
) -> tuple[bytes, str]:
    """Members doubled, missing, renamed, compressed, lied about."""
    way = rng.choice(
        ("missing", "twice", "renamed", "compressed", "size", "comment", "order")
    )
    name = rng.choice(list(members))
    if way == "missing":
        del members[name]
        return _zipped(members, head), f"without {name}"
    if way == "order":
        shuffled = rng.sample(sorted(members), len(members))
        return _zipped({n: members[n] for n in shuffled}, head), f"order {shuffled}"
    if way == "renamed":
        other = rng.choice(_ODD_NAMES)
        members = {other if n == name else n: data for n, data in members.items()}
        if rng.random() < 0.5 and name in head["members"]:
            head["members"][other] = head["members"].pop(name)
        return _zipped(members, head), f"{name} is {other[:20]!r}"
    buffer = BytesIO(_zipped(members, head))
    with zipfile.ZipFile(buffer, "a") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a name that is there already
        if way == "compressed":
            kind = zipfile.ZIP_DEFLATED
        else:
            kind = zipfile.ZIP_STORED
        if way == "comment":
            archive.comment = rng.choice(
                (b"", b"x", _MARK, _MARK + b"0" * 64, b"\xff" * 9)
            )
        else:
            archive.writestr(zipfile.ZipInfo(name), bytes(1 << 16), kind)
        if way == "size":
            info = rng.choice(archive.infolist())
            info.file_size = info.compress_size = rng.choice(
                (0, 1, 1 << 20, (1 << 32) - 2)
            )
            archive.comment = archive.comment  # the directory is written again
    return buffer.getvalue(), f"{way} {name}"


def _read_artifact(
    rng: Random,
    data: bytes,
    folder: Path,
) -> None:
    path = folder / "m.tw"
    path.write_bytes(data)
    model = bundle.load(path, verify=rng.random() < 0.5)
    threads = rng.choice((1, 2))
    exe = Executable(model, threads=threads)
    repr(exe), exe.peak_bytes
    if not exe.model.objects:
        exe(*map(_zeros, exe.inputs))


def _zeros(tensor: Tensor) -> Any:
    shape = tuple(min(n if n is not None else 2, 4) for n in tensor.shape or ())
    if tensor.dtype in ("string", "object"):
        return np.full(shape, "x", object)
    return np.zeros(shape, dtype_of(tensor.dtype).numpy)


# ----------------------------------------------------------------------------- cache entries


def _entry(rng: Random) -> tuple[bytes, str]:
    """A remembered digest, damaged or replaced by random bytes."""
    value, damage = mutated(rng, {"entry": [["boot", 1, 2, 3, 4, 5], "0" * 64]})
    data = written(json.dumps(value.get("entry")))
    return rng.choice((data, data, rng.randbytes(50), b"")), damage


def _read_entry(
    rng: Random,
    data: bytes,
    folder: Path,
) -> None:
    from tilewright.driver import file_digest

    store = FileStore(folder / "store", 1 << 20)
    file = folder / "file"
    file.write_bytes(b"contents")
    state = file_digest.FileState.of(file)
    store.put(f"contents-{state.device:x}-{state.inode:x}", data)
    file_digest.of_file(file, store)
    store.put("broken", data)
    path = store._path("broken")
    whole = bytearray(path.read_bytes())
    whole[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
    kept = rng.choice((len(whole), rng.randrange(len(whole) + 1)))
    path.write_bytes(bytes(whole[:kept]))
    if store.get("broken") not in (None, data):
        raise AssertionError("a damaged entry was read")


# --------------------------------------------------------------------- descriptions of machines

_MACHINE: Final[Mapping[str, Any]] = {
    "name": "example",
    "number": "Float16",
    "block": {"size": 16, "mantissa": 7},
    "dram": {
        "capacity": 1 << 24,
        "bandwidth": 32,
        "latency": 40,
        "energy": 20,
    },
    "vectors": {"capacity": 16384, "bandwidth": 128, "latency": 1, "energy": 1},
    "matrices": {"capacity": 262144, "bandwidth": 256, "latency": 2, "energy": 1},
    "operators": [
        {
            "names": ["VVAdd", "VVMul"],
            "sizes": [32, 128],
            "lanes": 64,
            "latency": 4,
        },
        {
            "name": "MMMul",
            "sizes": [64, 64, 64],
            "issue": 2,
            "interval": 128,
            "latency": 20,
            "energy": 80000,
        },
    ],
}


def _machine(rng: Random) -> tuple[bytes, str]:
    value, damage = mutated(rng, _MACHINE)
    data = written(_toml(value))
    if rng.random() < 0.2:
        at = rng.randrange(len(data) + 1)
        data = data[:at] + rng.randbytes(2) + data[at:]
        damage = f"{damage}; bytes at {at}"
    return data, damage


def _toml(value: Any) -> str:
    """The table as TOML; inner ones are inline."""
    lines = [f"{json.dumps(name)} = {_inline(part)}\n" for name, part in value.items()]
    return "".join(lines)


def _inline(value: Any) -> str:
    match value:
        case None:
            return '"none"'
        case bool():
            return str(value).lower()
        case float():
            return repr(value)
        case dict():
            inner = ", ".join(
                f"{json.dumps(k)} = {_inline(v)}" for k, v in value.items()
            )
            return f"{{{inner}}}"
        case list():
            return f"[{', '.join(map(_inline, value))}]"
        case _:
            return json.dumps(value)


def _read_machine(
    rng: Random,
    data: bytes,
    folder: Path,
) -> None:
    from tilewright.targets.npu.description import machine

    path = folder / "m.toml"
    path.write_bytes(data)
    repr(machine(str(path)))


def _record(rng: Random) -> tuple[bytes, str]:
    kind = rng.choice(list(mutate_records.READERS))
    data, damage = mutate_records.make(rng, kind)
    return kind.encode() + b"\n" + data, damage


def _read_record(
    rng: Random,
    data: bytes,
    folder: Path,
) -> None:
    kind, _, rest = data.partition(b"\n")
    mutate_records.READERS[kind.decode()](rest, folder)


_Kind = tuple[
    Callable[[Random], tuple[bytes, str]], Callable[[Random, bytes, Path], None], float
]
# How to make a mutant, how to read it, and how often.
_KINDS: Final[Mapping[str, _Kind]] = {
    "artifact": (_artifact, _read_artifact, 6),
    "entry": (_entry, _read_entry, 1),
    "machine": (_machine, _read_machine, 2),
    "record": (_record, _read_record, 3),
}


def main(first: int, count: int) -> int:
    """Run mutants and print the failures, one of each kind; how many there were."""
    seen: dict[str, int] = {}
    for seed in range(first, first + count):
        failure = run(seed)
        if failure is not None:
            answer = failure.error.strip().splitlines()[-3:]
            place = "\n".join(answer)
            seen[place] = seen.get(place, 0) + 1
            if seen[place] == 1:
                print(f"{seed} {failure}", flush=True)
    print(
        f"{count} mutants from {first}: {sum(seen.values())} failures, {len(seen)} distinct"
    )
    return sum(seen.values())


if __name__ == "__main__":
    sys.exit(1 if main(int(sys.argv[1]), int(sys.argv[2])) else 0)
