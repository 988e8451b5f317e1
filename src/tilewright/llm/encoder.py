"""Vectors of texts by an encoder of a sentence-transformers folder, such as MiniLM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Unpack

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError, UnsupportedError
from tilewright.driver.compile import compile
from tilewright.driver.recipe import ModelRecipe
from tilewright.frontends.hf.encoder import COUNT, IDS, Encoder, build, encoder_of
from tilewright.frontends.hf.folder import CONFIG, Checkpoint, files, load_json
from tilewright.graph.nodes import Graph
from tilewright.llm.tokens import Tokenizer

if TYPE_CHECKING:
    from tilewright.driver.keywords import EncoderOptions

LENGTHS: Final = (16, 32, 64, 128, 256, 512)
_POOLING: Final = "1_Pooling/config.json"
_MODE: Final = "pooling_mode_"
_MODES: Final = {f"{_MODE}mean_tokens": "mean", f"{_MODE}cls_token": "cls"}

Array = np.ndarray[Any, Any]


def load_embedder(
    folder: str | Path,
    *,
    pooling: str | None = None,
    normalized: bool = True,
    lengths: Sequence[int] = LENGTHS,
    threads: int | None = None,
    **options: Unpack[EncoderOptions],
) -> Embedder:
    """The encoder of a Hugging Face folder: config.json, safetensors, tokenizer.json.

    pooling: "mean" or "cls", by default what the folder says, else the mean. normalized: vectors
    have norm 1. lengths: the lengths that texts are padded to; each is compiled at first use.
    options: those of `tw.compile`.
    Raises ModelError and UnsupportedError for missing or unknown parts of the model.
    """
    path = Path(folder)
    encoder = encoder_of(load_json(path, CONFIG), str(path / CONFIG))
    said = load_json(path, "sentence_bert_config.json", optional=True)
    asked = said.get("max_seq_length")
    most = min(encoder.positions, asked if type(asked) is int else encoder.positions)
    return Embedder(
        path,
        encoder,
        Tokenizer(path),
        pooling or _pooling(path),
        normalized,
        tuple(sorted({n for n in lengths if n < most} | {most})),
        {"threads": threads, **options},
    )


def _pooling(folder: Path) -> str:
    """The folder's pooling. Raises UnsupportedError for an unsupported one."""
    found = load_json(folder, _POOLING, optional=True)
    if "pooling_mode" in found:  # as newer versions write it
        return str(found["pooling_mode"])
    asked = [key for key, on in found.items() if key.startswith(_MODE) and on]
    if not asked:
        return "mean"
    if len(asked) > 1 or asked[0] not in _MODES:
        raise UnsupportedError(
            f"the pooling {', '.join(asked)}",
            where=str(folder / _POOLING),
            hint=f"supported are {' or '.join(_MODES)}; pooling= chooses another",
        )
    return _MODES[asked[0]]


@dataclass
class Embedder:
    """An encoder that is compiled once per length that texts are filled up to."""

    folder: Path
    encoder: Encoder
    tokenizer: Tokenizer
    pooling: str
    normalized: bool
    lengths: tuple[int, ...]
    options: Mapping[str, Any]
    _made: dict[int, Any] = field(default_factory=dict, repr=False)
    _lock: Any = field(default_factory=Lock, repr=False)

    def prepare(self) -> Embedder:
        """Compile everything in advance, and return the embedder."""
        for length in self.lengths:
            self.executable(length)
        return self

    def executable(self, length: int) -> Any:
        """The compiled encoder of texts of `length` tokens."""
        with self._lock:
            if length not in self._made:
                chosen = (length, self.pooling, self.normalized, self.encoder)
                recipe = ModelRecipe(
                    lambda: self.graph(length), files(self.folder), repr(chosen)
                )
                self._made[length] = compile(recipe, **self.options)
        return self._made[length]

    def graph(self, length: int) -> Graph:
        """The graph for texts of `length` tokens, from `frontends.hf.encoder.build`."""
        return build(
            self.encoder,
            Checkpoint(self.folder, self.encoder.family.prefix),
            length,
            self.pooling,
            normalized=self.normalized,
        )

    def __call__(self, texts: str | Sequence[str], *, truncate: bool = False) -> Array:
        """The vectors of texts, float32[texts, width]; of a text alone, float32[width].

        truncate: cut a text that is too long, but keep its last token, an end mark.
        Otherwise raises InputError for a text that is too long.
        """
        if isinstance(texts, str):
            return self.vector(self.ids(texts, truncate=truncate))
        ids = [self.ids(text, truncate=truncate) for text in texts]
        found = [self.vector(i) for i in ids]
        return np.array(found, np.float32).reshape(len(found), self.encoder.width)

    def ids(self, text: str, *, truncate: bool = False) -> list[int]:
        """The tokens of a text. Raises InputError for none, and for more than the model takes."""
        ids = self.tokenizer.encode(text)
        most = self.lengths[-1]
        if not ids:
            raise InputError("a text has no tokens", hint="leave it out")
        if len(ids) <= most:
            return ids
        if truncate:
            return [*ids[: most - 1], ids[-1]]
        raise InputError(
            f"a text of {len(ids)} tokens: the model takes {most}",
            where=f"{self.folder}, text {text[:40]!r}",
            hint="split it, or truncate",
        )

    def vector(self, ids: Sequence[int]) -> Array:
        """The vector of a text in tokens, float32[width]."""
        length = next(n for n in self.lengths if n >= len(ids))
        padded = np.zeros(length, np.int64)
        padded[: len(ids)] = ids
        count = np.array([len(ids)], np.int64)
        return np.array(self.executable(length)({IDS: padded, COUNT: count}))
