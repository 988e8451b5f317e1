"""Loading ONNX models: from a path, bytes or a ModelProto to a Graph."""

from __future__ import annotations

import hashlib
import sys
import warnings
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tilewright.base import limits
from tilewright.base.errors import (
    ArgumentError,
    MemoryLimitError,
    ModelError,
    TilewrightWarning,
)
from tilewright.base.memory import memory_limit as memory_limit_of
from tilewright.base.text import listing, plural
from tilewright.frontends.extents import KEYS, with_metadata
from tilewright.frontends.files import check_bytes, checked, read, unreadable
from tilewright.frontends.onnx.initializers import Data, scan
from tilewright.graph.nodes import Graph, Value

_BYTES = bytes | bytearray | memoryview
_LARGE: Final = 1 << 20  # bytes of a file whose weights are read apart


def load(
    source: str | Path | bytes | Any,
    *,
    memory_limit: int | None = None,
    external_data_roots: Sequence[str | Path] = (),
    inputs: Collection[str] = (),
    standard: bool = False,
    mapped: bool = False,
) -> Graph:
    """The Graph of an ONNX model.

    source: a path, the bytes of a model, or an `onnx.ModelProto`. memory_limit: bytes (default:
    TILEWRIGHT_MEMORY_LIMIT, else what the machine has). external_data_roots: folders besides the
    model's own from which weights may be read. inputs: names of inputs that have default values but
    should remain inputs instead of becoming constants. standard: keep operators as the model has
    them, so that `to_onnx` can write them; otherwise some become internal operators. mapped: leave
    weights in their files: memory_limit does not count them, and the graph has no `origin`.

    Raises InputError for other `inputs`, ModelError for a broken file, MemoryLimitError for one
    that needs too much memory, UnsupportedError listing all operators that cannot be run.
    """
    from tilewright.frontends.onnx.external import ExternalData
    from tilewright.frontends.onnx.importer import import_graph
    from tilewright.frontends.onnx.protos import domain_of
    from tilewright.frontends.onnx.scope import ModelContext

    limit = memory_limit_of(memory_limit)
    path = Path(source) if isinstance(source, str | Path) else None
    where = str(path) if path is not None else "the model"
    model, data = _parse(source, path, limit, where, mapped)
    told = _check_versions(model, where)
    defaults = _defaults(model.graph, inputs)
    has_origin = bool(defaults) and not mapped
    external = ExternalData.of(path, external_data_roots)
    context = ModelContext(
        {domain_of(o): int(o.version) for o in model.opset_import},
        _functions(model),
        replace(external, digests=[] if has_origin else None),
        limit,
        standard,
        data,
        mapped=mapped,
    )
    try:
        with limits.compilation():
            graph = import_graph(model.graph, context, inputs)
        graph = with_metadata(graph, {p.key: p.value for p in model.metadata_props})
        told += _report(graph, context.shapes, where)
        kept = (v for name, v in defaults.items() if name not in inputs)
        digests = context.external.digests
        origin = _digest(model, data, digests) if has_origin else ""
        named = tuple(context.external.named)
        graph = replace(graph, files=named, warnings=tuple(told))
        return replace(graph, defaults=tuple(kept), origin=origin)
    except RecursionError:
        raise ModelError("subgraphs are nested too deep", where=where) from None
    except (ModelError, MemoryLimitError) as error:
        raise error.at(where) from error.__cause__


def metadata(source: str | Path | bytes | Any) -> dict[str, Any]:
    """What the author of a model says of it, under ONNX Runtime's names. Raises as `load` does."""
    path = Path(source) if isinstance(source, str | Path) else None
    where = str(path) if path is not None else "the model"
    model, _ = _parse(source, path, memory_limit_of(None), where, True)
    return {
        "producer_name": model.producer_name,
        "graph_name": model.graph.name,
        "domain": model.domain,
        "description": model.doc_string,
        "graph_description": model.graph.doc_string,
        "version": model.model_version,
        "custom_metadata_map": {e.key: e.value for e in model.metadata_props},
    }


def _functions(model: Any) -> dict[tuple[str, str, str], Any]:
    """The model's own functions by domain, name and overload."""
    from tilewright.frontends.onnx.protos import domain_of

    return {
        (domain_of(f), f.name, getattr(f, "overload", "")): f for f in model.functions
    }


def _report(graph: Graph, shapes: Sequence[str], where: str) -> list[str]:
    """Warn about a graph that computes nothing, or other shapes than it declares."""
    told = []
    if not graph.outputs:
        told.append("its graph has no outputs, so nothing is computed")
    if shapes:
        first, *more = shapes
        others = f", and {plural(len(more), 'other')} likewise" if more else ""
        told.append(f"{first}{others}")
    _warn(told, where)
    return told


def _defaults(graph: Any, inputs: Collection[str]) -> dict[str, Value]:
    """The inputs with an initializer. Raises InputError if `inputs` has another name."""
    from tilewright.frontends.onnx.importer import with_defaults
    from tilewright.frontends.onnx.protos import value_from_onnx

    found = {
        n: value_from_onnx(n, info.type) for n, info in with_defaults(graph).items()
    }
    for name in inputs:
        if name not in found:
            if found:
                have = listing([repr(n) for n in found])
            else:
                have = "none"
            raise ArgumentError(
                f"inputs: there is no input with a default named {name!r}",
                hint=f"the model has: {have}",
            )
    return found


def _digest(model: Any, data: Data, external: Iterable[str] | None) -> str:
    """A digest of everything that determines a model's meaning.

    data: as of `initializers.scan`. external: digests of external data.

    It is computed part by part, as messages above 2 GiB cannot be serialized.
    """
    graph = model.graph
    found = hashlib.sha256()
    limits = [p for p in model.metadata_props if p.key in KEYS]
    parts = (
        (model.opset_import, model.functions, graph.input, graph.output, graph.node)
        + (_whole(graph.initializer, data), graph.sparse_initializer, limits)
    )  # fmt: skip
    for repeated in parts:
        found.update(b"%d;" % len(repeated))
        for part in repeated:
            raw = part.SerializeToString(deterministic=True)
            found.update(b"%d:" % len(raw) + raw)
    found.update(" ".join(external or ()).encode())
    return found.hexdigest()


def _whole(tensors: Sequence[Any], data: Data) -> Sequence[Any]:
    """Initializers with their data."""
    found = list(tensors)
    for n, raw in data.items():
        found[n] = type(found[n])()
        found[n].CopyFrom(tensors[n])
        found[n].raw_data = raw.tobytes()
    return found


def _message(path: Path, limit: int, mapped: bool) -> tuple[bytes, int, Data]:
    """The message in a file, how many bytes reading it takes, and the data that it lacks."""
    checked(path, sys.maxsize if mapped else limit)
    size = path.stat().st_size if path.is_file() else 0
    if size >= _LARGE:
        # A damaged file is read as it is: the parser says what is wrong.
        with suppress(ValueError):
            message, data = _scanned(path, mapped)
            return message, len(message) if mapped else size, data
    whole = read(path, limit)
    return whole, len(whole), {}


def _scanned(path: Path, mapped: bool) -> tuple[bytes, Data]:
    try:
        return scan(path, mapped)
    except OSError as error:
        raise unreadable(path, error) from None


def _parse(
    source: Any, path: Path | None, limit: int, where: str, mapped: bool
) -> tuple[Any, Data]:
    """The model, and the data that its initializers lack."""
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    data: Data = {}
    if isinstance(source, onnx.ModelProto):
        model = source
    else:
        if path is not None:
            message, size, data = _message(path, limit, mapped)
        elif isinstance(source, _BYTES):
            message = bytes(source)
            size = len(source)
        else:
            raise ModelError(
                f"a {type(source).__name__} is not a model",
                hint="Give a path, the bytes of an ONNX file, or an onnx.ModelProto",
            )
        check_bytes(size, limit, where)
        try:
            model = onnx.ModelProto.FromString(message)
        except DecodeError:
            raise ModelError(
                f"not an ONNX model, or a truncated one ({size:,} bytes)",
                where=where,
                hint="Fetch or export the file again",
            ) from None
    graph = model.graph
    if not (graph.node or graph.output or graph.input or graph.initializer):
        raise ModelError("not an ONNX model: it has no graph", where=where)
    return model, data


def _check_versions(model: Any, where: str) -> list[str]:
    """Warn about versions newer than the known ones, and try anyway."""
    import onnx

    from tilewright.frontends.onnx.functions import newest_opset
    from tilewright.frontends.onnx.protos import domain_of

    told = []
    if not model.opset_import:
        raise ModelError("not an ONNX model: it imports no operator set", where=where)
    if model.ir_version > onnx.IR_VERSION:
        told.append(
            f"IR version {model.ir_version} is newer than the newest known "
            f"({onnx.IR_VERSION}); trying it"
        )
    for o in model.opset_import:
        if o.version < 0:
            name = o.domain or "ai.onnx"
            raise ModelError(
                f"it imports opset {o.version} of domain {name}", where=where
            )
        known = newest_opset(domain_of(o))
        if known and o.version > known:
            told.append(
                f"opset {o.version} of domain {o.domain or 'ai.onnx'} is newer than the newest "
                f"known ({known}); trying it"
            )
    _warn(told, where)
    return told


def _warn(told: Sequence[str], where: str) -> None:
    for text in told:
        warnings.warn(f"{where}: {text}", TilewrightWarning, stacklevel=4)
