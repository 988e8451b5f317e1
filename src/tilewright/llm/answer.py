"""The answer to a prompt: the choice of each token, the text it adds, and its end."""

from __future__ import annotations

from dataclasses import field
from typing import Any, Final

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.llm.sampling import Sampling
from tilewright.llm.tokens import TextStream

STOP: Final = "stop"  # a token that ends texts, or a text of `stop`
LENGTH: Final = "length"  # as many tokens as were asked for, or as the context holds

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class GeneratedToken:
    """A token, and the text that became certain with it; `str(token)` is that text."""

    id: int
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass
class Answer:
    """The tokens of one answer, taken from logits one after the other.

    ids: of the prompt. ends: ids after which a text is complete. room: tokens at most.
    stream: what makes text of ids, if there is a tokenizer. reason: why it ended, None before.
    """

    ids: list[int]
    sampling: Sampling
    ends: frozenset[int]
    room: int
    stream: TextStream | None
    count: int = 0
    reason: str | None = None
    _generator: np.random.Generator = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._generator = self.sampling.generator()

    def take(self, logits: Array) -> GeneratedToken:
        """The next token, from logits float[vocabulary]. Sets `reason` at the last token.

        Raises ExecutionError for logits from which no token can be chosen.
        """
        token = self.sampling.choose(logits, self._generator)
        self.count += 1
        if token in self.ends:
            self.reason = STOP
        elif self.count == self.room:
            self.reason = LENGTH
        text = self._text(token)
        if self.stream is not None and self.stream.stopped:
            self.reason = STOP
        return GeneratedToken(token, text)

    def _text(self, token: int) -> str:
        """The text that a token adds; for an end token only the text held back."""
        stream = self.stream
        if stream is None:
            return ""
        text = "" if token in self.ends else stream.push(token)
        over = self.reason is not None and not stream.stopped
        return text + stream.end() if over else text
