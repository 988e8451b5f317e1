"""A language model over a key-value cache: prompts in chunks, then token by token.

A prompt is read in chunks of a few fixed sizes, the last one padded, so that no prompt length needs
a new compilation. Cache places after the last token hold padding: causal attention does not see
them, and the next tokens overwrite them. Only the last token of a prompt needs logits: earlier
chunks only compute keys and values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Unpack

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ArgumentError, InputError
from tilewright.driver.compile import compile
from tilewright.driver.recipe import ModelRecipe
from tilewright.frontends.hf.decoder import Decoder, decoder_of
from tilewright.frontends.hf.folder import CONFIG, Checkpoint, files, load_json
from tilewright.frontends.hf.graph import IDS, POSITION, build
from tilewright.graph.nodes import Graph
from tilewright.llm.answer import Answer, GeneratedToken
from tilewright.llm.sampling import Sampling
from tilewright.llm.tokens import FILE, TextStream, Tokenizer

if TYPE_CHECKING:
    from tilewright.driver.keywords import ModelOptions

CHUNKS: Final = (64, 16)
CONTEXT: Final = 2048  # positions by default
GROUP: Final = 32  # integers to a scale
BITS: Final = {"int8": 8, "int4": 4}
FLOATS: Final = ("float32", "bfloat16", "float16")

Array = np.ndarray[Any, Any]


@dataclass
class KeyValueCache:
    """The keys and values of one text, which calls write in place, and how many they are of."""

    caches: dict[str, Array]
    position: int = 0


def load(
    folder: str | Path,
    *,
    precision: str = "float32",
    group: int = GROUP,
    context: int | None = None,
    chunks: Sequence[int] = CHUNKS,
    threads: int | None = None,
    **options: Unpack[ModelOptions],
) -> LanguageModel:
    """The language model of a Hugging Face folder: config.json, safetensors, tokenizer.json.

    precision: of the weights: "float32", "bfloat16", "float16", "int8" or "int4"; integers have a
    scale per `group`. context: the most tokens of prompt and answer together, by default the
    model's training length, at most 2048. chunks: lengths in which prompts are read besides 1; each
    has its own code and weights. options: those of `tw.compile`.

    Nothing is compiled yet: that happens at first use, or by `prepare`.
    Raises ModelError, UnsupportedError and InputError for missing, unknown or invalid parts.
    """
    path = Path(folder)
    where = str(path / CONFIG)
    config = load_json(path, CONFIG)
    generation = load_json(path, "generation_config.json", optional=True)
    if precision not in (*BITS, *FLOATS):
        known = ", ".join((*FLOATS, *BITS))
        raise InputError(f"precision={precision!r}", hint=f"choose one of {known}")
    if context is None:
        context = min(CONTEXT, decoder_of(config, where=where).trained)
    decoder = decoder_of(config, context, where)
    if any(type(n) is not int or n < 2 for n in chunks):
        raise InputError(f"chunks={chunks!r}", hint="give lengths of at least 2")
    given: dict[str, Any] = {"threads": threads, **options}
    if precision in FLOATS[1:]:
        given["precision"] = precision
    return LanguageModel(
        path,
        decoder,
        frozenset(_ids(generation.get("eos_token_id", config.get("eos_token_id")))),
        tuple(sorted((n for n in set(chunks) if n < context), reverse=True)),
        (precision, group),
        given,
    )


def _ids(found: Any) -> list[int]:
    """One id, several, or none, as configurations have them."""
    found = found if isinstance(found, list) else [found]
    return [n for n in found if type(n) is int]


@dataclass
class LanguageModel:
    """A decoder that is compiled once per chunk length: 1, and those of `chunks`.

    ends: ids that complete a text. weights: their precision, and the number of integers per scale.
    """

    folder: Path
    decoder: Decoder
    ends: frozenset[int]
    chunks: tuple[int, ...]
    weights: tuple[str, int]
    options: Mapping[str, Any]
    _made: dict[tuple[int, int], Any] = field(default_factory=dict, repr=False)
    _tokenizer: Tokenizer | None = field(default=None, repr=False)
    _lock: Any = field(default_factory=Lock, repr=False)

    @property
    def tokenizer(self) -> Tokenizer:
        """The folder's tokenizer. Raises ModelError and UnsupportedError if there is none."""
        if self._tokenizer is None:
            self._tokenizer = Tokenizer(self.folder)
        return self._tokenizer

    def prepare(self, sequences: Sequence[int] = ()) -> LanguageModel:
        """Compile everything in advance, and return the model.

        sequences: also compile steps of these numbers of texts at a time.
        """
        for length in (1, *self.chunks):
            self.executable(length)
        for count in sequences:
            self.executable(1, count)
        return self

    def graph(self, length: int, sequences: int = 1) -> Graph:
        """The graph that reads `length` tokens of each of `sequences` texts, from
        `frontends.hf.graph.build`, with weights in the model's precision."""
        from tilewright.graph.passes.weight_only import weight_only

        tensors = Checkpoint(self.folder, self.decoder.family.prefix)
        made = build(
            self.decoder, tensors, length, head=length == 1, sequences=sequences
        )
        precision, group = self.weights
        bits = BITS.get(precision)
        return made if bits is None else weight_only(made, bits, group)

    def executable(self, length: int, sequences: int = 1) -> Any:
        """The compiled model for `length` tokens of each text, with caches updated in place."""
        key = length, sequences
        with self._lock:
            if key not in self._made:
                aliases = {f"{name}_out": name for name in self.decoder.caches}
                settings = repr((key, self.weights, self.decoder.settings))
                recipe = ModelRecipe(
                    lambda: self.graph(length, sequences), files(self.folder), settings
                )
                self._made[key] = compile(recipe, aliases=aliases, **self.options)
        return self._made[key]

    def start(self) -> KeyValueCache:
        """An empty text. Each has its own cache: texts do not see one another."""
        return KeyValueCache(self.caches(1))

    def caches(self, sequences: int) -> dict[str, Array]:
        """Empty caches of `sequences` texts, a row for each."""
        shape = self.decoder.cache(sequences)
        return {c: np.zeros(shape, np.float32) for c in self.decoder.caches}

    def feed(self, state: KeyValueCache, ids: Sequence[int]) -> Array:
        """Append ids to a text. Returns the logits of the next token: float32[vocabulary].

        Raises InputError for no ids, for ids outside the vocabulary, and if the context is full.
        """
        self._check(state.position, ids)
        while len(ids) > 1:
            ids = ids[self.read(state, ids[:-1]) :]
        logits = self._call(1, state, ids)[0]
        return np.array(logits[0])

    def read(self, state: KeyValueCache, ids: Sequence[int]) -> int:
        """Append the first ids to a text, as many as one call reads; returns their number."""
        room = self.decoder.positions - state.position
        length, used = next(pieces(len(ids), room, self.chunks))
        self._call(length, state, ids[:used])
        return used

    def step(self, caches: Mapping[str, Array], ids: Array, positions: Array) -> Array:
        """One more token for each of several texts, in one call.

        caches: a row for each, written in place; ids: int64[texts], their tokens; positions:
        int32[texts], their positions. Returns logits: float32[texts, vocabulary].
        """
        made = self.executable(1, len(ids))
        return np.array(made({IDS: ids, POSITION: positions, **caches})[0])

    def _call(self, length: int, state: KeyValueCache, ids: Sequence[int]) -> Any:
        padded = np.zeros(length, np.int64)
        padded[: len(ids)] = ids
        position = np.array([state.position], np.int32)
        given = {IDS: padded, POSITION: position, **state.caches}
        made = self.executable(length)(given)
        state.position += len(ids)
        return made

    def _check(self, have: int, ids: Sequence[int]) -> None:
        most = self.decoder.positions
        if not ids:
            raise InputError("there are no ids", hint="give at least one")
        if have + len(ids) > most:
            raise InputError(
                f"{len(ids)} tokens after {have} exceed the context of {most}",
                where=str(self.folder),
                hint=f"shorten the prompt, or load with context= up to {self.decoder.trained}",
            )
        for n in ids:
            if not 0 <= n < self.decoder.vocabulary:
                raise InputError(
                    f"there is no token {n}: the vocabulary has {self.decoder.vocabulary}",
                    where=str(self.folder),
                )

    def encode(self, prompt: str | Sequence[int]) -> list[int]:
        """The ids of a prompt. Raises InputError for one without any."""
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        if not ids:
            raise InputError("the prompt is empty", hint="give at least one token")
        return [int(n) for n in ids]

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int = 256,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        stop: str | Sequence[str] = (),
    ) -> Iterator[GeneratedToken]:
        """The tokens that follow a prompt, as they are found.

        It ends after `max_tokens`, an end token (which is included, without text), a text of `stop`
        (which is omitted), or when the context is full. For a prompt in ids, tokens have text if
        there is a tokenizer. Sampling: see `Sampling`; equal seeds, equal tokens. Raises InputError
        for a prompt that exceeds the context, and as `Sampling` does.
        """
        sampling = Sampling(temperature, top_k, top_p, seed)
        answer = self.answer(prompt, max_tokens, sampling, stop)
        return self._generated(self.start(), answer)

    def answer(
        self,
        prompt: str | Sequence[int],
        max_tokens: int,
        sampling: Sampling,
        stop: str | Sequence[str] = (),
    ) -> Answer:
        """The answer to a prompt, not yet generated. Raises InputError as `generate`."""
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        if not all(stops):
            raise ArgumentError("stop: a text is empty", hint="leave it out")
        if type(max_tokens) is not int or max_tokens < 1:
            raise ArgumentError(f"max_tokens={max_tokens!r}", hint="give at least 1")
        ids = self.encode(prompt)
        self._check(0, ids)
        room = min(max_tokens, self.decoder.positions - len(ids) + 1)
        stream = self._stream(stops, isinstance(prompt, str))
        return Answer(ids, sampling, self.ends, room, stream)

    def _generated(
        self, state: KeyValueCache, answer: Answer
    ) -> Iterator[GeneratedToken]:
        ids = answer.ids
        while answer.reason is None:
            token = answer.take(self.feed(state, ids))
            ids = [token.id]
            yield token

    def _stream(self, stops: Sequence[str], needed: bool) -> TextStream | None:
        has = needed or stops or (self.folder / FILE).is_file()
        return TextStream(self.tokenizer, stops) if has else None


def pieces(count: int, room: int, sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Chunks in which `count` tokens are read: each length and the number of tokens in it.

    sizes: lengths besides 1, descending. Takes the smallest that holds the rest, padded; else the
    largest. A chunk never exceeds the `room` in the cache.
    """
    while count:
        fitting = [n for n in sizes if n <= room and count > 1]
        holding = [n for n in fitting if n >= count]
        length = min(holding) if holding else max(fitting, default=1)
        used = min(length, count)
        yield length, used
        count, room = count - used, room - used
