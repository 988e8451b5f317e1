"""The thread that decodes for all clients: requests wait for a row, join, and leave.

Between two steps it reads one chunk of one prompt, so that a long prompt does not block others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Condition, Thread

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import LimitError, TilewrightError
from tilewright.llm.answer import Answer
from tilewright.llm.batch import Batch, BatchedText
from tilewright.llm.model import LanguageModel


@dataclass(frozen=True)
class TextPiece:
    """The text of one token. reason: why the answer ends here; None if it continues."""

    text: str
    reason: str | None


Tell = Callable[[TextPiece | Exception], object]


@dataclass(eq=False)
class GenerationRequest:
    """A pending answer. tell: is called by the engine's thread, and short."""

    answer: Answer
    tell: Tell
    text: BatchedText | None = None
    cancelled: bool = False


class EngineClosed(TilewrightError):
    """The engine ends, and answers nothing any more."""

    code = "TW-CLOSED"


class Engine:
    """Answers requests by one thread. waiting: requests without a row, at most."""

    def __init__(self, batch: Batch, waiting: int) -> None:
        self._batch = batch
        self._most = waiting
        self._waiting: deque[GenerationRequest] = deque()
        self._active: list[GenerationRequest] = []
        self._changed = Condition()
        self._closed = False
        self._thread = Thread(target=self._run, name="tilewright-serve", daemon=True)

    def start(self) -> Engine:
        self._thread.start()
        return self

    def close(self) -> None:
        """End the thread; requests that are not answered hear of it."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    @property
    def model(self) -> LanguageModel:
        return self._batch.model

    @property
    def counts(self) -> dict[str, int]:
        """Requests with a row, and those that wait for one."""
        with self._changed:
            return {"active": len(self._active), "waiting": len(self._waiting)}

    def submit(self, answer: Answer, tell: Tell) -> GenerationRequest:
        """Ask for an answer: `tell` gets its pieces up to one with a reason, or an error.

        Raises LimitError where too many wait already, Closed when the engine ends.
        """
        with self._changed:
            if self._closed:
                raise EngineClosed("the server is shutting down")
            free = self._batch.rows - len(self._active)
            if len(self._waiting) >= self._most + free:
                raise LimitError(
                    f"{len(self._active)} requests are being answered and "
                    f"{len(self._waiting)} requests are waiting: the queue is full",
                    hint="try again later",
                )
            request = GenerationRequest(answer, tell)
            self._waiting.append(request)
            self._changed.notify()
        return request

    def cancel(self, request: GenerationRequest) -> None:
        """Nobody waits for the answer any more: before the next step its row is free."""
        with self._changed:
            request.cancelled = True
            self._changed.notify()

    def _run(self) -> None:
        while self._admitted():
            try:
                self._round()
            except Exception as error:  # of a call for all: all have to hear of it
                for request in list(self._active):
                    self._end(request, error)
        for request in [*self._active, *self._waiting]:
            request.tell(EngineClosed("the server is shutting down"))

    def _admitted(self) -> bool:
        """Wait for work; free the rows of cancelled requests, and give them to waiting ones."""
        with self._changed:
            while True:
                for request in [r for r in self._active if r.cancelled]:
                    self._drop(request)
                left = (r for r in self._waiting if not r.cancelled)
                self._waiting = deque(left)
                if self._closed or self._active or self._waiting:
                    break
                self._changed.wait()
            while self._waiting and not self._batch.full:
                request = self._waiting.popleft()
                request.text = self._batch.join(request.answer)
                self._active.append(request)
            return not self._closed

    def _round(self) -> None:
        """Read one chunk of the oldest unread prompt, then do one step of all texts that are
        read."""
        unread = (r.text for r in self._active if r.text and not r.text.read)
        text = next(unread, None)
        if text is not None:
            self._batch.read(text)
        whose = {request.text: request for request in self._active}
        for text, logits in self._batch.step():
            request, answer = whose[text], text.answer
            try:
                token = self._batch.take(text, logits)
            except TilewrightError as error:  # of this text alone
                self._end(request, error)
                continue
            if answer.reason is not None:
                self._end(request)
            request.tell(TextPiece(token.text, answer.reason))

    def _end(self, request: GenerationRequest, error: Exception | None = None) -> None:
        with self._changed:
            self._drop(request)
        if error is not None:
            request.tell(error)

    def _drop(self, request: GenerationRequest) -> None:
        self._active.remove(request)
        if request.text is not None:
            self._batch.leave(request.text)
