"""Several texts decoded together: each has a row of the caches, and one call is a step of all.

Texts join and leave between steps. Steps of 1, 2, 4, ... texts are compiled, up to the number of
rows. Texts are in the first rows: when one leaves, the last one moves into its row. A row without a
text, or with one that is not read yet, takes part with a dummy token at its position: the next
token overwrites its keys and values before they are seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, takewhile
from typing import Any

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError
from tilewright.llm.answer import Answer, GeneratedToken
from tilewright.llm.model import KeyValueCache, LanguageModel

Array = np.ndarray[Any, Any]


@dataclass(eq=False)
class BatchedText:
    """One text of a batch. left: ids that are not read yet; the last of them is a step's."""

    answer: Answer
    left: list[int]
    position: int = 0

    @property
    def read(self) -> bool:
        """Whether the next step has its next token."""
        return len(self.left) == 1


def sizes(rows: int) -> list[int]:
    """How many texts a step may have: the powers of two below the rows, and all rows."""
    return [*takewhile(lambda n: n < rows, (2**k for k in count())), rows]


class Batch:
    """Up to `rows` texts of one model. Not thread-safe."""

    def __init__(self, model: LanguageModel, rows: int) -> None:
        self.model = model
        self.rows = rows
        self.sizes = sizes(rows)
        self.texts: list[BatchedText] = []
        self._caches = model.caches(rows)

    def prepare(self) -> Batch:
        """Compile everything in advance, and return the batch."""
        self.model.prepare(self.sizes)
        return self

    @property
    def full(self) -> bool:
        return len(self.texts) == self.rows

    def join(self, answer: Answer) -> BatchedText:
        """A text that begins with the prompt of an answer. Raises InputError without a row."""
        if self.full:
            raise InputError(
                f"all {self.rows} rows are in use", hint="remove a text first"
            )
        text = BatchedText(answer, list(answer.ids))
        self.texts.append(text)
        return text

    def leave(self, text: BatchedText) -> None:
        """Free the row of a text."""
        row, last = self.texts.index(text), self.texts.pop()
        if last is text:
            return
        self.texts[row] = last
        # With the place of its next token: a step may have filled that already.
        source, used = len(self.texts), last.position + 1
        for cache in self._caches.values():
            cache[row, :, :used] = cache[source, :, :used]

    def read(self, text: BatchedText) -> None:
        """Read one chunk of a prompt; does nothing if the prompt is read."""
        if text.read:
            return
        row = self.texts.index(text)
        own = {name: cache[row : row + 1] for name, cache in self._caches.items()}
        used = self.model.read(KeyValueCache(own, text.position), text.left[:-1])
        text.left = text.left[used:]
        text.position += used

    def step(self) -> list[tuple[BatchedText, Array]]:
        """The logits, float32[vocabulary], of all texts that are read."""
        if not any(text.read for text in self.texts):
            return []
        size = next(n for n in self.sizes if n >= len(self.texts))
        ids, positions = np.zeros(size, np.int64), np.zeros(size, np.int32)
        for row, text in enumerate(self.texts):
            ids[row], positions[row] = text.left[0], text.position
        rows = {name: cache[:size] for name, cache in self._caches.items()}
        logits = self.model.step(rows, ids, positions)
        pairs = zip(self.texts, logits[: len(self.texts)], strict=True)
        return [(text, found) for text, found in pairs if text.read]

    @staticmethod
    def take(text: BatchedText, logits: Array) -> GeneratedToken:
        """The next token of a text, from its logits of `step`; the next step reads it."""
        token = text.answer.take(logits)
        text.left = [token.id]
        text.position += 1
        return token

    def generate(self, answers: Sequence[Answer]) -> list[list[GeneratedToken]]:
        """The tokens of all answers, which join as rows are free."""
        found: dict[BatchedText, list[GeneratedToken]] = {}
        waiting = list(reversed(answers))
        while waiting or self.texts:
            while waiting and not self.full:
                found[self.join(waiting.pop())] = []
            for text in self.texts:
                self.read(text)
            for text, logits in self.step():
                found[text].append(self.take(text, logits))
                if text.answer.reason is not None:
                    self.leave(text)
        return list(found.values())
