"""The cache of whole models: a model that was compiled before is loaded without parsing it.

The key is a digest of everything that the result depends on: the contents of the model's file and
of the files of its weights, the options, the processor's features, the compiler's sources, and the
Python packages that it calls. A model for ranges of shapes is cached as a whole, under the `dims`
as they were given; one that is not in a file, by the digest of its graph. The names of the files of
weights are cached, too, so that they are known without parsing the model. An entry holds its own
key: one under the name of another is refused as a damaged one is. Models with user-defined
operators, for user-defined targets, or with host fallbacks are not cached.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tilewright.base import events
from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ArtifactError, ModelError, TilewrightWarning
from tilewright.base.store import FileStore
from tilewright.driver import file_digest
from tilewright.driver.file_digest import FileState
from tilewright.driver.left_work import afterwards
from tilewright.driver.recipe import ModelRecipe
from tilewright.driver.version import compiler
from tilewright.frontends import torch
from tilewright.runtime import bundle, digest, ranged_bundle, trim
from tilewright.runtime.machine import architecture, cpu_flags
from tilewright.runtime.model import CompiledModel, HostFallbackStep
from tilewright.runtime.ranged_model import RangedModel

# Bytes of a model from which writing it takes longer than starting a thread.
LARGE: Final = 8 << 20
MANY: Final = 8 << 20  # bytes of a file that are worth a process that reads them
KEY: Final = "key"  # in `meta` of a cached model alone: what it was cached under
States = tuple[tuple[Path, FileState], ...]
AnyModel = CompiledModel | RangedModel


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A model as the cache identifies it, before anything is parsed.

    stem: a digest of everything that the result depends on, except the files that the model names.
    path: its file; None if it is given as bytes or by a recipe. states: the states of the files in
    the stem. began: the start, in nanoseconds since the epoch. roots: folders besides its own that
    may contain its weights. target: its name.
    """

    stem: str
    path: Path | None
    states: States
    began: int
    roots: tuple[str | Path, ...] = ()
    target: str = "cpu"

    @property
    def name(self) -> str:
        """The name of the file, or of the folder that a recipe reads; empty for bytes."""
        if self.path is not None:
            return self.path.name
        return self.states[0][0].resolve().parent.name if self.states else ""


def known(
    store: FileStore,
    source: Any,
    dims: Mapping[str, Any] | None,
    options: Mapping[str, Any],
    limit: int,
    roots: Sequence[str | Path] = (),
) -> CachedModel | None:
    """Identify a model given as a path, bytes, a recipe or, for ranges, a Graph.

    None for one that is not cached.

    Files of more than `limit` bytes and files that are not regular are not read: the importer
    rejects them.
    """
    # If the user has registered an operator or a rule, the registry is loaded. Importing it just to
    # check would take a third of a second.
    registry = sys.modules.get("tilewright.graph.ops.registry")
    if registry is not None and registry.user_defined():
        return None
    rules = sys.modules.get("tilewright.graph.rules.registry")
    if rules is not None and rules.registered():
        return None
    target = options.get("target", "cpu")
    if _supplied(target):
        return None
    began = time.time_ns()
    path: Path | None = None
    states: States = ()
    if isinstance(source, bytes):
        held = digest.of_bytes(source) if len(source) <= limit else ""
    elif isinstance(source, ModelRecipe):
        digests, states = _read(source.files, store, limit)
        held = f"{source.settings} {digests}" if digests else ""
    elif isinstance(source, str | os.PathLike):
        path = Path(source)
        digests, states = _read((path,), store, limit)
        held = digests[0] if digests else ""
    else:
        # One shape is known by its kernels, which are cached.
        held = _of_graph(source) if "no-jit" in options else ""
    if not held:
        return None
    machine = [architecture(), sorted(cpu_flags())]
    packages = ("torch",) if path and path.suffix == torch.SUFFIX else ()
    try:
        made_by = compiler(*packages, store=store)
    except ModuleNotFoundError:
        return None
    rest = (
        held,
        sorted((dims or {}).items()),
        sorted(options.items()),
        machine,
        made_by,
    )
    return CachedModel(_digest(rest), path, states, began, tuple(roots), target)


def _of_graph(source: Any) -> str:
    """The digest of a Graph; empty for anything else."""
    nodes = sys.modules.get("tilewright.graph.nodes")
    if nodes is None or not isinstance(source, nodes.Graph):
        return ""
    from tilewright.driver.graph_digest import digest_of

    return digest_of(source)


def is_new(store: FileStore, source: str | os.PathLike[str]) -> bool:
    """Whether a source is a file of many bytes that have to be read to identify it."""
    path = Path(source)
    try:
        if not path.is_file() or path.stat().st_size < MANY:
            return False
        return not file_digest.is_remembered(path, store)
    except (OSError, ValueError):
        return False


def _read(
    files: Sequence[Path], store: FileStore, limit: int
) -> tuple[list[str], States]:
    """The digests of files, and their states before reading; empty if one must not be read."""
    try:
        states = tuple((f, FileState.of(f)) for f in files if f.is_file())
        if len(states) < len(files) or sum(s.size for _, s in states) > limit:
            return [], ()
        return [file_digest.of_file(f, store) for f in files], states
    except (OSError, ValueError):
        return [], ()


def _supplied(target: str) -> bool:
    """Whether a target belongs to another package; its code may change without changing the key."""
    registry = sys.modules.get("tilewright.targets.registry")
    return registry is not None and bool(registry.registered(target))


def find(
    store: FileStore, asked: CachedModel, limit: int, threads: int
) -> AnyModel | None:
    """The cached model, verified, with the warnings of its import; a damaged one is deleted.

    None also for a model that needs more than `limit` bytes: compiling it raises the proper error.
    """
    key = _key(store, asked, _named(store, asked), limit)
    path = None if key is None else store.find(key)
    if key is None or path is None:
        return None
    try:
        sealed = _state_in(store.get(_seal(key))) == _state(path)
        model = _own(ranged_bundle.load(path, verify=not sealed), key)
        if not sealed:
            store.put(_seal(key), _sealed(path, asked.name))
    except (ArtifactError, OSError):
        store.discard(key)
        return None
    if not model.fits(limit, threads):
        return None
    events.emit("model-cached", key=key, sealed=sealed)
    where = "the model" if asked.path is None else asked.path
    for text in model.meta.get("warnings", ()):
        warnings.warn(f"{where}: {text}", TilewrightWarning, stacklevel=2)
    return model


def _own(model: AnyModel, key: str) -> AnyModel:
    """The model as it was before `_keyed`. Raises ArtifactError for that of another key."""
    meta = dict(model.meta)
    if meta.pop(KEY, None) != key:
        raise ArtifactError("was kept as another entry")
    return replace(model, meta=meta)


def _keyed(model: AnyModel, key: str) -> AnyModel:
    """The model with the key that it is cached under."""
    return replace(model, meta={**model.meta, KEY: key})


def keep(store: FileStore, asked: CachedModel, model: AnyModel, limit: int) -> None:
    """Cache a compiled model, unless it runs host fallbacks, which each compilation must report.

    Trimming a result to its count does not count as one: there is nothing to report.

    A large model is written while the caller runs it, with pauses: the next compilation waits for
    the end of writing. A model is not cached if one of its files may have changed during the
    compilation.
    """
    if _supplied(asked.target):
        return
    models = model.models if isinstance(model, RangedModel) else (model,)
    steps = (s for m in models for s in m.steps)
    hosted = (s for s in steps if isinstance(s, HostFallbackStep))
    if any(s.provider != trim.PROVIDER for s in hosted):
        return
    names = model.meta.get("files", [])
    key = _key(store, asked, names, limit)
    if key is None or _changed(asked, names):
        return
    code = {part for m in models for part in m.objects}
    size = model.held.stored_bytes(whole=True) + sum(map(len, code))

    def write(pause: bundle.Pause) -> None:
        try:
            path = store.adopt(
                key,
                size,
                lambda path: ranged_bundle.write(
                    _keyed(model, key), path, private=True, pause=pause
                ),
            )
        except ArtifactError as error:
            events.emit("model-not-kept", key=key, reason=str(error))
            return
        if path is not None:
            with suppress(OSError):  # another process has just evicted it
                store.put(_seal(key), _sealed(path, asked.name))
            if names:
                store.put(f"files-{asked.stem}", json.dumps(names).encode())

    if size < LARGE:
        write(bundle.no_pause)
    else:
        afterwards(write)


def _named(store: FileStore, asked: CachedModel) -> list[str]:
    """The files that the model names, as recorded when it was last cached."""
    entry = store.get(f"files-{asked.stem}")
    try:
        return [] if entry is None else list(map(str, json.loads(entry)))
    except (ValueError, TypeError, RecursionError):
        return []


def _key(
    store: FileStore, asked: CachedModel, names: Sequence[str], limit: int
) -> str | None:
    """The key in the store; None if a file is missing, too large, or must not be read."""
    if not names:
        return f"model-{asked.stem}"
    try:
        files = _files(asked, names)
        if sum(f.stat().st_size for f in files) > limit:
            return None
        return f"model-{_digest((asked.stem, [file_digest.of_file(f, store) for f in files]))}"
    except (OSError, ModelError):
        return None


def _changed(asked: CachedModel, names: Sequence[str]) -> bool:
    """Whether a file may have changed since the compilation began."""
    try:
        same = all(FileState.of(f) == state for f, state in asked.states)
        return not (
            same
            and all(FileState.of(f).settled(asked.began) for f in _files(asked, names))
        )
    except (OSError, ModelError):
        return True


def _files(asked: CachedModel, names: Sequence[str]) -> list[Path]:
    """The paths of the named files. Raises ModelError for one that the model must not read."""
    if not names:
        return []
    from tilewright.frontends.onnx.external import ExternalData

    rules = ExternalData.of(asked.path, asked.roots)
    return [rules.find(name, "the model") for name in names]


def name_of(store: FileStore, key: str) -> str:
    """The file name of a cached model; empty if unknown or if it was given as bytes."""
    _, _, name = (store.peek(_seal(key)) or b"").partition(b"\n")
    return name.decode(errors="replace")


def _seal(key: str) -> str:
    """The key of the entry that marks a model as verified, and has its name."""
    return f"seal-{key}"


def _sealed(path: Path, name: str) -> bytes:
    return _state(path) + b"\n" + os.fsencode(name)


def _state_in(seal: bytes | None) -> bytes | None:
    return None if seal is None else seal.partition(b"\n")[0]


def _state(path: Path) -> bytes:
    """The state of a verified artifact, valid until the system restarts.

    Without `touched`, which each use changes: only the store writes here.
    """
    s = FileState.of(path)
    return repr(
        (s.boot or time.time_ns(), s.device, s.inode, s.size, s.changed)
    ).encode()


def _digest(parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()
