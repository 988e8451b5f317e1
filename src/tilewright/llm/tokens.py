"""Text as ids and back: tokenizer.json by the `tokenizers` library, chat templates, streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tilewright.base.errors import (
    InputError,
    ModelError,
    TilewrightError,
    UnsupportedError,
)
from tilewright.base.memory import memory_limit
from tilewright.base.text import reason
from tilewright.frontends.files import read
from tilewright.frontends.hf.folder import load_json

FILE: Final = "tokenizer.json"
_CONFIG: Final = "tokenizer_config.json"
_TEMPLATE: Final = "chat_template.jinja"
# Replaces bytes that are not, or not yet, a character.
_UNFINISHED: Final = "\N{REPLACEMENT CHARACTER}"
_LONGEST: Final = 4  # bytes of a character in UTF-8: so many tokens may be unfinished


class Tokenizer:
    """The tokenizer of a folder. Raises ModelError for a file that is missing or broken,
    UnsupportedError if the library is not installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / FILE
        if not path.is_file():
            raise ModelError(
                f"{FILE} is missing",
                where=str(folder),
                hint="copy it from where the weights are from, or give ids instead of text, "
                "in Python or to the server",
            )
        try:
            import tokenizers
        except ImportError:
            raise UnsupportedError(
                f"{FILE} needs the package tokenizers",
                where=str(path),
                hint="pip install 'tilewright[llm]'",
            ) from None
        try:
            self._all = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises Exception itself
            raise ModelError(
                f"it cannot be read: {reason(error)}", where=str(path)
            ) from None
        # Both are the caller's to do: a prompt is neither cut nor filled.
        self._all.no_truncation()
        self._all.no_padding()

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The ids of a text. special: with the tokens that the model puts around texts."""
        return list(self._all.encode(text, add_special_tokens=special).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, without special tokens."""
        return str(self._all.decode(list(ids), skip_special_tokens=True))

    def chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Messages, each with a role and a content, as the prompt of the next answer.

        Raises ModelError without a template or for one that fails, UnsupportedError without jinja2.
        """
        config = load_json(self.folder, _CONFIG, optional=True)
        template = _template(self.folder, config)
        try:
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ImportError:
            raise UnsupportedError(
                "chat templates need the package jinja2",
                where=str(self.folder),
                hint="pip install 'tilewright[llm]'",
            ) from None
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True
        )
        environment.globals["raise_exception"] = _refuse
        special = {key: _content(config.get(key)) for key in ("bos_token", "eos_token")}
        try:
            made = environment.from_string(template).render(
                messages=[dict(m) for m in messages],
                add_generation_prompt=True,
                **special,
            )
        except TilewrightError:
            raise
        except Exception as error:  # a template is a program, and may raise anything
            raise ModelError(
                f"the chat template fails: {error}", where=str(self.folder)
            ) from None
        return str(made)


def _template(folder: Path, config: Mapping[str, Any]) -> str:
    path = folder / _TEMPLATE
    found = config.get("chat_template")
    if path.is_file():
        found = read(path, memory_limit(None)).decode(errors="replace")
    if isinstance(found, list):
        named = {t.get("name"): t.get("template") for t in found if isinstance(t, dict)}
        found = named.get("default")
    if not isinstance(found, str):
        raise ModelError(
            "the model has no chat template",
            where=str(folder),
            hint="give a prompt instead of messages",
        )
    return found


def _refuse(message: str) -> None:
    raise InputError(f"the chat template says: {message}")


def _content(token: Any) -> str:
    """A special token, which is a text or an object with one."""
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else ""


class TextStream:
    """The text of a stream of ids, returned as soon as nothing can change it.

    Incomplete characters, and text that may become one of the texts in `stop`, are held back. A
    stop text and anything after it are not returned: `stopped` is then True.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._ids: list[int] = []
        self._begin = self._read = 0
        self._held = ""
        self.stopped = False

    def push(self, token: int) -> str:
        """The text that is certain now, and was not before."""
        self._ids.append(token)
        return self._released(self._new(finished=False))

    def end(self) -> str:
        """The text held back, when no more tokens come."""
        text = self._released(self._new(finished=True))
        if self.stopped:
            return text
        held, self._held = self._held, ""
        return text + held

    def _new(self, finished: bool) -> str:
        """The text that the last ids add. Of a few ids before them, as these may join with them."""
        decode = self._tokenizer.decode
        before = decode(self._ids[self._begin : self._read])
        text = decode(self._ids[self._begin :])
        waiting = len(self._ids) - self._read < _LONGEST
        if not finished and text.endswith(_UNFINISHED) and waiting:
            return ""
        self._begin, self._read = self._read, len(self._ids)
        return text[len(before) :]

    def _released(self, new: str) -> str:
        text = self._held + new
        ends = [place for s in self._stop if (place := text.find(s)) >= 0]
        if ends:
            self.stopped = True
            self._held = ""
            return text[: min(ends)]
        kept = max((_overlap(text, s) for s in self._stop), default=0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]


def _overlap(text: str, stop: str) -> int:
    """How much of the end of a text begins the other."""
    most = min(len(text), len(stop) - 1)
    return next((n for n in range(most, 0, -1) if stop.startswith(text[-n:])), 0)
