"""Passes and pipelines: named, verified between steps, traced and timed, printed as one line.

A pass is a frozen dataclass; its kebab-case name follows from the class, its fields are its
options. A pipeline is a pass too, and its text names each step with the options that are not
defaults, so that the text rebuilds it: `tile{size=4},unroll`.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, TypeVar

from tilewright.base import limits
from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError, placed
from tilewright.base.events import span
from tilewright.base.text import did_you_mean

T = TypeVar("T")


class Pass(ABC, Generic[T]):
    """A step from a program to a program of the same kind. Subclass as a frozen dataclass."""

    name: ClassVar[str]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" not in cls.__dict__:
            words = re.findall(
                r"[A-Z]+(?![a-z])|[A-Z][a-z0-9]*|[a-z0-9]+", cls.__name__
            )
            cls.name = "-".join(w.lower() for w in words if w != "Pass")

    @abstractmethod
    def run(self, program: T) -> T:
        """The program after this step."""

    def __str__(self) -> str:
        changed = [
            f"{f.name}={getattr(self, f.name)!r}"
            for f in dataclasses.fields(self)  # type: ignore[arg-type]
            if f.repr and getattr(self, f.name) != f.default
        ]
        return f"{self.name}{{{','.join(changed)}}}" if changed else self.name


@dataclass(frozen=True)
class Pipeline(Generic[T]):
    """Passes in order. `verify` raises a TilewrightError for a program that breaks an invariant."""

    name: str
    passes: tuple[Pass[T] | Pipeline[T], ...]
    verify: Callable[[T], None] | None = dataclasses.field(
        default=None, repr=False, compare=False
    )

    def run(
        self,
        program: T,
        check: bool = False,
        observe: Callable[[str, T], None] | None = None,
    ) -> T:
        """Run all steps; with `check` the program is verified before the first and after each.

        Each step is an event `pass` (pipeline, name, changed) with its time. A VerifyError names
        the step after which the invariant was found broken. observe: is given the name of each
        step and the program after it, verified.
        """
        if check:
            self._check(program, "before the first pass")
        for step in self.passes:
            limits.check()
            with span("pass", pipeline=self.name, name=step.name) as timed:
                before = program
                program = (
                    step.run(program, check, observe)
                    if isinstance(step, Pipeline)
                    else step.run(program)
                )
                timed.set(changed=program is not before)
            if isinstance(step, Pipeline):
                continue
            if check:
                self._check(program, f"after pass {step}")
            if observe is not None:
                observe(step.name, program)
        return program

    def _check(self, program: T, where: str) -> None:
        if self.verify is None:
            return
        with placed(f"pipeline {self.name}, {where}"):
            self.verify(program)

    def __str__(self) -> str:
        return ",".join(map(str, self.passes))


def parse_pipeline(
    name: str,
    text: str,
    known: Mapping[str, type[Pass[T]]],
    verify: Callable[[T], None] | None = None,
) -> Pipeline[T]:
    """The pipeline that `str` printed as `text`; `known` maps names to pass classes.

    Raises InputError for an unknown name or option, or wrong syntax.
    """
    steps = []
    position = 0
    for match in re.finditer(r"\s*([\w-]+)(?:\{([^{}]*)\})?\s*(?:,|$)", text):
        if match.start() != position:
            break
        position = match.end()
        word, options = match.group(1), match.group(2)
        if word not in known:
            raise InputError(f"unknown pass {word!r}", hint=did_you_mean(word, known))
        try:
            steps.append(known[word](**_options(options or "")))
        except (TypeError, ValueError, SyntaxError) as error:
            raise InputError(
                f"pass {word}: options {options!r} are wrong: {error}"
            ) from None
    if position != len(text):
        raise InputError(
            f"cannot read a pipeline at {text[position:]!r}",
            hint="Write a,b{option=1},c",
        )
    return Pipeline(name, tuple(steps), verify)


def _options(text: str) -> dict[str, Any]:
    tree = ast.parse(f"f({text})", mode="eval").body
    assert isinstance(tree, ast.Call)
    if tree.args:
        raise ValueError("each option is name=value")
    return {
        k.arg: ast.literal_eval(k.value) for k in tree.keywords if k.arg is not None
    }
