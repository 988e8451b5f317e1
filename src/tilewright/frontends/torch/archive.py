"""Reading a torch.export.save zip file with its tensors, without unpickling.

Version 0 of the format, which PyTorch writes since 2.9: all members are in one folder; the program
is `models/model.json`, weights and constants are raw bytes with a JSON list next to them. Members
that only an unpickler could read are rejected; sample inputs, compiled libraries and extra files
are ignored.
"""

from __future__ import annotations

import json
import math
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tilewright.base import flags
from tilewright.base.errors import MemoryLimitError, ModelError

FORMAT: Final = "0"
PROGRAM: Final = "models/model.json"
WEIGHTS: Final = "data/weights/"
CONSTANTS: Final = "data/constants/"

_MEMBER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.]*")
# Earlier versions pickled all weights into this member.
_PICKLED: Final = (
    "data/weights/model.pt",
    "data/constants/model.pt",
    "serialized_state_dict.pt",
)


class Archive:
    """An open archive. `limit`: bytes that its tensors may take together in memory.

    Raises ModelError for a zip file that is not such an archive.
    """

    def __init__(self, file: zipfile.ZipFile, limit: int) -> None:
        self._file = file
        self._left = limit
        self._members = _members(file)
        if any(name in self._members for name in _PICKLED):
            raise untrusted(
                "its weights are a pickle, as earlier versions of PyTorch wrote them"
            )
        version = self.read("archive_version").decode("ascii", "replace")
        if version != FORMAT:
            raise malformed(
                f"the archive has version {version[:20]!r}, expected {FORMAT}"
            )

    def read(self, name: str) -> bytes:
        """The bytes of a member. Raises ModelError if it is missing."""
        if name not in self._members:
            raise malformed(f"the archive has no member {name!r}")
        return self._file.read(self._members[name])

    def json(self, name: str) -> Any:
        """The contents of a JSON member. Raises ModelError, ValueError."""
        return json.loads(self.read(name))

    def tensors(self, folder: str, config: Mapping[str, Any]) -> dict[str, Any]:
        """The tensors of a folder by name; tensors that share bytes in the file share memory.

        config: name -> `schema.PayloadMeta`. Raises ModelError, MemoryLimitError.
        """
        stored: dict[tuple[str, Any], Any] = {}
        return {
            name: self._tensor(folder, name, meta, stored)
            for name, meta in config.items()
        }

    def _tensor(
        self, folder: str, name: str, payload: Any, stored: dict[tuple[str, Any], Any]
    ) -> Any:
        import torch
        from torch._export.serde.serialize import _SERIALIZE_TO_TORCH_DTYPE as DTYPES

        meta = payload.tensor_meta
        if payload.use_pickle is not False or meta is None:
            raise untrusted(f"{name!r} is a Python object or a tensor of another class")
        if not _MEMBER.fullmatch(payload.path_name):
            raise malformed(
                f"tensor {name!r} is in a member {payload.path_name[:80]!r}"
            )
        dtype = DTYPES[meta.dtype]
        place = payload.path_name, dtype
        if place not in stored:
            raw = bytearray(self.read(folder + payload.path_name))
            stored[place] = (
                torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0).to(dtype)
            )
        sizes = _extents(name, meta.sizes)
        strides = _extents(name, meta.strides)
        (offset,) = _extents(name, [meta.storage_offset])
        # A stride of 0 turns four bytes into a tensor of any size.
        self._left -= math.prod(sizes) * dtype.itemsize
        if self._left < 0:
            raise MemoryLimitError(
                f"tensor {name!r} of {sizes} is over the memory limit",
                hint=f"Raise {flags.MEMORY_LIMIT.name} if the machine has the memory",
            )
        tensor = torch.as_strided(stored[place], sizes, strides, offset)
        if payload.is_param:
            return torch.nn.Parameter(tensor, requires_grad=meta.requires_grad is True)
        return tensor


def malformed(what: str) -> ModelError:
    """The error for an archive that `torch.export.save` would not write."""
    return ModelError(
        what, hint="Save it again by torch.export.save of PyTorch 2.9 or later"
    )


def untrusted(what: str) -> ModelError:
    """The error for contents that cannot be read without running code from the file."""
    return ModelError(
        f"{what}: reading it can run code from the file",
        code="TW-TRUST",
        hint="Save it again from its source by PyTorch 2.9 or later; "
        "if you trust its author, use --trust or trust=True",
    )


def _members(file: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """The members by their names below the single folder: each stored uncompressed and once."""
    infos = [info for info in file.infolist() if not info.is_dir()]
    size = Path(file.filename or "").stat().st_size
    for info in infos:
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            raise malformed(
                f"the archive has a compressed or encrypted member {info.filename!r}"
            )
        if info.file_size != info.compress_size or info.file_size > size:
            raise malformed(
                f"the archive has a member {info.filename!r} larger than the file"
            )
    found = {info.filename.partition("/")[2]: info for info in infos}
    if len({info.filename.partition("/")[0] for info in infos}) != 1 or len(
        found
    ) != len(infos):
        raise malformed("the archive has members outside its folder, or a member twice")
    return found


def _extents(name: str, values: Any) -> list[int]:
    found = [value.value for value in values]
    if any(type(n) is not int or not 0 <= n < 1 << 62 for n in found):
        raise malformed(f"tensor {name!r} has the extents or strides {found}")
    return found
