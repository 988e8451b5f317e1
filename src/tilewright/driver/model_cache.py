"""The cache of whole models: a model that was compiled before is not even parsed.

The key is what the result depends on: the contents of the model's file and of the files that its
weights lie in, the options, the processor's features, this compiler's own sources, and the Python
packages it calls. Which other files a model names is kept beside it when it was compiled, so that
they are known without reading it as a model. Not kept: models with operators of the user's own, for
a target of the user's own, or with host fallbacks.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any, Final

from tilewright.base import events
from tilewright.base.errors import ArtifactError, ModelError
from tilewright.base.store import Store
from tilewright.driver import file_digest
from tilewright.driver.compile_lock import afterwards
from tilewright.driver.file_digest import FileState
from tilewright.driver.recipe import ModelRecipe
from tilewright.driver.version import compiler
from tilewright.frontends import torch
from tilewright.runtime import bundle, digest, trim
from tilewright.runtime.machine import architecture, cpu_flags
from tilewright.runtime.model import CompiledModel, HostFallbackStep

# Bytes of a model that take longer to write than a thread to start.
LARGE: Final = 8 << 20
States = tuple[tuple[Path, FileState], ...]


@dataclass(frozen=True, slots=True)
class Known:
    """A model as the cache knows it, before anything is parsed.

    stem: all that the result depends on but the files that the model names. path: its file; None
    where it was given as bytes, or made by a recipe. states: those of the files that the stem is
    of. began: nanoseconds of the epoch. roots: folders besides its own that its weights may lie in.
    target: by name.
    """

    stem: str
    path: Path | None
    states: States
    began: int
    roots: tuple[str | Path, ...] = ()
    target: str = "cpu"

    @property
    def name(self) -> str:
        """The file's name, the folder's where a recipe reads one; empty for bytes."""
        if self.path is not None:
            return self.path.name
        return self.states[0][0].resolve().parent.name if self.states else ""


def known(
    store: Store,
    source: Any,
    dims: Mapping[str, Any] | None,
    options: Mapping[str, Any],
    limit: int,
    roots: Sequence[str | Path] = (),
) -> Known | None:
    """What is known of a model given as a path, bytes or a recipe; None for what is not kept whole.

    Files that have more than `limit` bytes, or are not regular ones, are not read: the importer
    refuses them.
    """
    # Who registers an operator or a rule has loaded the registry; loading it to see that costs a
    # third of a second.
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
        return None
    if not held:
        return None
    machine = [architecture(), sorted(cpu_flags())]
    try:
        made_by = compiler(
            *(torch.PACKAGES if path and path.suffix == torch.SUFFIX else ())
        )
    except PackageNotFoundError:
        return None
    rest = (
        held,
        sorted((dims or {}).items()),
        sorted(options.items()),
        machine,
        made_by,
    )
    return Known(_digest(rest), path, states, began, tuple(roots), target)


def _read(files: Sequence[Path], store: Store, limit: int) -> tuple[list[str], States]:
    """Digests of files, and their states before; none where one is not to be read."""
    try:
        states = tuple((f, FileState.of(f)) for f in files if f.is_file())
        if len(states) < len(files) or sum(s.size for _, s in states) > limit:
            return [], ()
        return [file_digest.of_file(f, store) for f in files], states
    except (OSError, ValueError):
        return [], ()


def _supplied(target: str) -> bool:
    """Whether a target is not of this package; what it makes changes without the key."""
    registry = sys.modules.get("tilewright.targets.registry")
    return registry is not None and bool(registry.registered(target))


def find(store: Store, asked: Known, limit: int, threads: int) -> CompiledModel | None:
    """The model kept for it, verified; a damaged one is deleted.

    None also for one that needs more than `limit` bytes: compiling says so properly.
    """
    key = _key(store, asked, _named(store, asked), limit)
    path = None if key is None else store.find(key)
    if key is None or path is None:
        return None
    try:
        sealed = _state_in(store.get(_seal(key))) == _state(path)
        model = bundle.load(path, verify=not sealed)
        if not sealed:
            store.put(_seal(key), _sealed(path, asked.name))
    except (ArtifactError, OSError):
        store.discard(key)
        return None
    if model.memory(threads) + len(model.constants) > limit:
        return None
    events.emit("model-cached", key=key, sealed=sealed)
    return model


def keep(store: Store, asked: Known, model: CompiledModel, limit: int) -> None:
    """Keep a compiled model, unless it runs host fallbacks, which have to be reported anew.

    Cutting a result to its count is none: there is nothing to report.

    A large one is written while the caller runs it: the next compilation waits for that.
    Nor is it kept where a file that it was made from may have changed meanwhile.
    """
    if _supplied(asked.target):
        return
    hosted = (s for s in model.steps if isinstance(s, HostFallbackStep))
    if any(s.provider != trim.PROVIDER for s in hosted):
        return
    names = model.meta.get("files", [])
    key = _key(store, asked, names, limit)
    if key is None or _changed(asked, names):
        return
    size = model.held.stored_bytes + sum(map(len, model.objects))

    def write() -> None:
        try:
            path = store.adopt(
                key, size, lambda path: bundle.write(model, path, private=True)
            )
        except ArtifactError as error:
            events.emit("model-not-kept", key=key, reason=str(error))
            return
        if path is not None:
            with suppress(OSError):  # another process evicted it at this very moment
                store.put(_seal(key), _sealed(path, asked.name))
            if names:
                store.put(f"files-{asked.stem}", json.dumps(names).encode())

    if size < LARGE:
        write()
    else:
        afterwards(write)


def _named(store: Store, asked: Known) -> list[str]:
    """The files that the model names, as noted when it was last kept."""
    entry = store.get(f"files-{asked.stem}")
    try:
        return [] if entry is None else list(map(str, json.loads(entry)))
    except (ValueError, TypeError, RecursionError):
        return []


def _key(store: Store, asked: Known, names: Sequence[str], limit: int) -> str | None:
    """The key in the store; None where a file is missing, too large, or must not be read."""
    if not names:
        return f"model-{asked.stem}"
    try:
        files = _files(asked, names)
        if sum(f.stat().st_size for f in files) > limit:
            return None
        return f"model-{_digest((asked.stem, [file_digest.of_file(f, store) for f in files]))}"
    except (OSError, ModelError):
        return None


def _changed(asked: Known, names: Sequence[str]) -> bool:
    """Whether a file may have changed since the compilation began."""
    try:
        same = all(FileState.of(f) == state for f, state in asked.states)
        return not (
            same
            and all(FileState.of(f).settled(asked.began) for f in _files(asked, names))
        )
    except (OSError, ModelError):
        return True


def _files(asked: Known, names: Sequence[str]) -> list[Path]:
    """Where the named files are. Raises ModelError for one that the model must not read."""
    if not names:
        return []
    from tilewright.frontends.onnx.external import ExternalData

    rules = ExternalData.of(asked.path, asked.roots)
    return [rules.find(name, "the model") for name in names]


def name_of(store: Store, key: str) -> str:
    """What the file of a kept model was called; empty for one given as bytes, and where lost."""
    _, _, name = (store.peek(_seal(key)) or b"").partition(b"\n")
    return name.decode(errors="replace")


def _seal(key: str) -> str:
    """The key of the entry that says of a model that it was whole, and what it is called."""
    return f"seal-{key}"


def _sealed(path: Path, name: str) -> bytes:
    return _state(path) + b"\n" + os.fsencode(name)


def _state_in(seal: bytes | None) -> bytes | None:
    return None if seal is None else seal.partition(b"\n")[0]


def _state(path: Path) -> bytes:
    """The state of an artifact that was whole, as long as this start of the system lasts.

    Not `touched`, which each use changes: nobody but the store writes here.
    """
    s = FileState.of(path)
    return repr(
        (s.boot or time.time_ns(), s.device, s.inode, s.size, s.changed)
    ).encode()


def _digest(parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()
