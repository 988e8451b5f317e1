"""Requests and answers in the format of OpenAI's API; unsupported fields are rejected by name."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, Final, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import (
    InputError,
    LimitError,
    ModelError,
    TilewrightError,
    UnsupportedError,
)
from tilewright.base.text import nearest
from tilewright.llm.serve.engine import EngineClosed

Fields = dict[str, Any]

# Fields of which only the usual default values are supported.
_ONLY: Final[Mapping[str, tuple[Any, ...]]] = {
    "best_of": (1,),
    "dimensions": (),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),
    "modalities": (["text"],),
    "n": (1,),
    "parallel_tool_calls": (True, False),
    "presence_penalty": (0,),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
}
# These identify the caller and do not change the answer.
_IGNORED: Final = {"metadata", "safety_identifier", "service_tier", "store", "user"}


class RequestRefused(Exception):
    """A rejected request: its status, and an object with the reason."""

    def __init__(
        self, status: int, message: str, param: str | None = None, code: str = ""
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = failure(status, message, param, code)


def failure(
    status: int, message: str, param: str | None = None, code: str = ""
) -> Fields:
    """An error in OpenAI's form."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    body = {"message": message, "type": kind, "param": param, "code": code or None}
    return {"error": body}


_STATUS: Final = (
    (LimitError, 503, "server_busy"),
    (EngineClosed, 503, "server_stopping"),
    (InputError, 400, ""),
    (ModelError, 400, ""),
    (UnsupportedError, 400, ""),
)


def refusal_of(error: Exception) -> RequestRefused:
    """The answer to a request that an error ended. What is inside stays inside."""
    for kind, status, code in _STATUS:
        if isinstance(error, kind):
            return RequestRefused(status, _said(error), code=code)
    if isinstance(error, TilewrightError):
        return RequestRefused(500, _said(error), code=error.code)
    return RequestRefused(500, f"internal error: {type(error).__name__}")


def _said(error: TilewrightError) -> str:
    """The message and the hint: places are paths of this machine."""
    return f"{error.message}; {error.hint}" if error.hint else error.message


class _Request(BaseModel):
    """Types are strict: a number in quotes is a string."""

    model_config = ConfigDict(extra="allow", strict=True)

    model: str

    def settled(self) -> None:
        """Raise RequestRefused for an unknown field or an unsupported value."""
        for name, value in (self.model_extra or {}).items():
            if value is None or name in _IGNORED:
                continue
            if name not in _ONLY:
                near = nearest(name, {*type(self).model_fields, *_ONLY})
                said = f"; did you mean {near!r}?" if near else ""
                raise RequestRefused(400, f"{name}: unknown field{said}", name)
            allowed = _ONLY[name]
            if not any(value == a and type(value) is type(a) for a in allowed):
                can = " or ".join(map(repr, allowed)) or "nothing"
                said = f"{name}={value!r:.60} is not supported; only {can} is"
                raise RequestRefused(400, said, name, "unsupported_value")


def _one_of(expected: str) -> WrapValidator:
    """A field of several types: a value of none is told what is expected, not what each lacks."""

    def read(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError as error:
            if not all(e["type"].endswith("_type") for e in error.errors()):
                raise
            said = f"expected {expected}, got {_kinds(value)}"
        raise PydanticCustomError("none_of_these_types", "{said}", {"said": said})

    return WrapValidator(read)


_JSON: Final[Mapping[type, str]] = {
    str: "text",
    dict: "map",
    list: "list",
    bool: "boolean",
    float: "fraction",
}


def _kinds(value: Any) -> str:
    """What a value of JSON is; of a list, what it has."""
    if isinstance(value, list) and value:
        return f"a list of {' and '.join(sorted({f'{_kind(v)}s' for v in value}))}"
    return f"a {_kind(value)}" if value is not None else "null"


def _kind(value: Any) -> str:
    return _JSON.get(type(value), "null" if value is None else "number")


class _StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True)

    include_usage: bool = False


_Number = Annotated[float | None, Field(ge=0, le=2, allow_inf_nan=False)]
_Share = Annotated[float | None, Field(gt=0, le=1, allow_inf_nan=False)]
_Count = Annotated[int | None, Field(ge=1)]
_Stops = Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=4)]


class _Generation(_Request):
    max_tokens: _Count = None
    temperature: _Number = None
    top_p: _Share = None
    seed: int | None = None
    stop: Annotated[
        str | _Stops | None, _one_of("a text or a list of up to 4 texts")
    ] = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None

    @property
    def stops(self) -> list[str]:
        found = [] if self.stop is None else self.stop
        return [found] if isinstance(found, str) else found

    @property
    def most(self) -> int | None:
        """The maximum number of tokens, if given."""
        return self.max_tokens


class CompletionRequest(_Generation):
    """POST /v1/completions: one prompt, as text or as ids."""

    prompt: Annotated[
        str | list[int] | list[str],
        _one_of("a text, a list of ids, or a list of one text"),
    ]

    @property
    def only(self) -> str | list[int]:
        """The one prompt. Raises Refused for several."""
        texts = [p for p in self.prompt if isinstance(p, str)]
        if isinstance(self.prompt, str) or not texts:
            return self.prompt  # type: ignore[return-value]
        if len(texts) > 1:
            raise RequestRefused(
                400, f"prompt: {len(texts)} texts; only one is supported", "prompt"
            )
        return texts[0]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    type: Literal["text"]
    text: str


class Message(BaseModel):
    """A message of a chat; its content may come in parts of text."""

    model_config = ConfigDict(strict=True, extra="forbid")

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[
        str | list[_Part], _one_of("a text or a list of parts with type and text")
    ]
    name: str | None = None

    def plain(self) -> dict[str, str]:
        content = self.content
        if not isinstance(content, str):
            content = "".join(part.text for part in content)
        return {"role": self.role, "content": content}


class ChatRequest(_Generation):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: _Count = None

    @property
    def most(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens


class EmbeddingRequest(_Request):
    """POST /v1/embeddings: texts, not ids."""

    input: Annotated[
        str | Annotated[list[str], Field(min_length=1, max_length=256)],
        _one_of("a text or a list of texts"),
    ]
    encoding_format: Literal["float", "base64"] = "float"


@dataclass(frozen=True)
class AnswerFormat:
    """How an answer is written, whole and in pieces."""

    prefix: str
    whole: str
    piece: str
    chat: bool

    def choice(self, text: str, reason: str | None) -> Fields:
        """The one choice of a whole answer."""
        if not self.chat:
            return _choice({"text": text}, reason)
        message = {"role": "assistant", "content": text, "refusal": None}
        return _choice({"message": message}, reason)

    def part(self, text: str, reason: str | None, first: bool) -> Fields:
        """The one choice of a piece of it."""
        if not self.chat:
            return _choice({"text": text}, reason)
        delta = {"role": "assistant"} if first else {}
        return _choice({"delta": delta | {"content": text}}, reason)


def _choice(fields: Fields, reason: str | None) -> Fields:
    return {"index": 0, **fields, "logprobs": None, "finish_reason": reason}


COMPLETION: Final = AnswerFormat(
    "cmpl", "text_completion", "text_completion", chat=False
)
CHAT: Final = AnswerFormat(
    "chatcmpl", "chat.completion", "chat.completion.chunk", chat=True
)


@dataclass
class Reply:
    """One answer: what all of its objects share."""

    form: AnswerFormat
    model: str
    id: str = ""
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        self.id = f"{self.form.prefix}-{uuid.uuid4().hex}"

    def written(self, kind: str, choices: list[Fields], **more: Any) -> Fields:
        shared = {"id": self.id, "object": kind, "created": self.created}
        return shared | {"model": self.model, "choices": choices, **more}


def usage(prompt: int, answered: int | None = None) -> Fields:
    """Tokens read and made; the token that ends a text is one."""
    found = {"prompt_tokens": prompt, "total_tokens": prompt + (answered or 0)}
    return found if answered is None else found | {"completion_tokens": answered}
