"""The one boundary around operator definitions: whatever they raise names the node.

Definitions check what their authors thought of, by `call.error`. A hostile model finds the rest:
NumPy's, Python's and ONNX's own exceptions. They become the error that the caller would have
raised, with the code TW-DEFINITION and the exception as its cause (TILEWRIGHT_DEBUG=1 shows it).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tilewright.base.errors import MemoryLimitError, ModelError, TilewrightError
from tilewright.graph.nodes import DataDependent, Operation

CODE = "TW-DEFINITION"
RULES = "its inputs or attributes break the operator's rules"
_LONGEST = 300  # characters of a foreign message


def place(op: Operation) -> str:
    """The node as errors name it."""
    return f"node {op.label!r} ({op.qualified})"


@contextmanager
def definition_of_node(
    op: Operation,
    says: str = RULES,
    kind: type[TilewrightError] = ModelError,
    hint: str | None = None,
) -> Iterator[None]:
    """Run a part of the definition of `op` inside; whatever it raises becomes a `kind`.

    says: what the message begins with. Our own errors get the node's name where they have none.
    """
    try:
        yield
    except DataDependent:
        raise
    except TilewrightError as error:
        raise error if error.where else error.at(place(op)) from error.__cause__
    except MemoryError as error:
        raise MemoryLimitError(
            f"it needs more memory than there is: {_text(error)}".rstrip(": "),
            where=place(op),
            hint="Set TILEWRIGHT_MEMORY_LIMIT to be told before",
        ) from error
    except RecursionError:
        raise  # whoever began the compilation knows how deep it is
    except Exception as error:
        raise kind(
            f"{says}: {type(error).__name__}: {_text(error)}".rstrip(": "),
            code=CODE,
            where=place(op),
            hint=hint,
        ) from error


def _text(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
