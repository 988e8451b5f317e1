"""Whole models in the cache: a model that was compiled before is not even read as a model.

The key is what the result depends on: the bytes of the ONNX file, the options, the processor's
features, this compiler's own sources, and the Python packages it calls. Only models that are their
bytes are kept: no weights in other files, no operators of the user's own, no reference kernels.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewright.base import events
from tilewright.base.errors import ArtifactError
from tilewright.base.store import Store
from tilewright.driver.version import compiler
from tilewright.runtime import bundle
from tilewright.runtime.machine import architecture, cpu_flags
from tilewright.runtime.model import CompiledModel, HostStep

# How ONNX writes the first key of weights in another file; it may occur by chance, which only
# keeps such a model out.
_EXTERNAL = b"\n\x08location"


def key_of(
    source: Any, dims: Mapping[str, int] | None, options: Mapping[str, Any], limit: int
) -> str | None:
    """The key of a model given as a path or bytes; None for what is not kept whole.

    A file of more than `limit` bytes, or that is no plain file, is not read: importing refuses it.
    """
    # Who registers an operator has loaded the registry; loading it to see that costs a third of
    # a second.
    registry = sys.modules.get("tilewright.graph.ops.registry")
    if registry is not None and registry.user_defined():
        return None
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        try:
            if not path.is_file() or path.stat().st_size > limit:
                return None
            source = path.read_bytes()
        except (OSError, ValueError):
            return None
    if not isinstance(source, bytes) or _EXTERNAL in source:
        return None
    machine = [architecture(), sorted(cpu_flags())]
    text = repr((sorted((dims or {}).items()), sorted(options.items()), machine, compiler()))
    digest = hashlib.sha256(source)  # which processors have instructions for
    digest.update(text.encode())
    return f"model-{digest.hexdigest()}"


def find(store: Store, key: str, limit: int, threads: int) -> CompiledModel | None:
    """The model kept under `key`, verified; a damaged one is deleted.

    None also for one that needs more than `limit` bytes: compiling says so properly.
    """
    path = store.find(key)
    if path is None:
        return None
    try:
        model = bundle.load(path, verify=True)
    except ArtifactError:
        store.discard(key)
        return None
    if model.memory(threads) + len(model.constants) > limit:
        return None
    events.emit("model-cached", key=key)
    return model


def keep(store: Store, key: str, model: CompiledModel) -> None:
    """Keep a compiled model, unless it runs reference kernels, which have to be reported anew."""
    if any(isinstance(s, HostStep) for s in model.steps):
        return
    size = len(model.constants) + sum(map(len, model.objects))
    store.adopt(key, size, lambda path: bundle.save(model, path, durable=False))
