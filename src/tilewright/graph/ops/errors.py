"""The boundary around operator definitions: every error that they raise names the node.

Definitions report the misuses that their authors foresaw by `call.error`. Other models can still
provoke exceptions of NumPy, Python and ONNX. These become the error that the caller would have
raised, with the code TW-DEFINITION and the exception as its cause (shown with TILEWRIGHT_DEBUG=1).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tilewright.base.errors import MemoryLimitError, ModelError, TilewrightError
from tilewright.graph.nodes import DataDependent, Operation

CODE = "TW-DEFINITION"
RULES = "its inputs or attributes break the operator's rules"
_LONGEST = 300  # longest part of a foreign message that is shown


def place(op: Operation) -> str:
    """The node, as errors name it."""
    return f"node {op.label!r} ({op.qualified})"


@contextmanager
def definition_of_node(
    op: Operation,
    says: str = RULES,
    kind: type[TilewrightError] = ModelError,
    hint: str | None = None,
) -> Iterator[None]:
    """Run a part of the definition of `op` inside; anything it raises becomes a `kind`.

    says: how the message begins. Our own errors get the node's name if they have none.
    """
    try:
        yield
    except DataDependent:
        raise
    except TilewrightError as error:
        raise error if error.where else error.at(place(op)) from error.__cause__
    except MemoryError as error:
        raise MemoryLimitError(
            f"it needs more memory than is available: {_text(error)}".rstrip(": "),
            where=place(op),
            hint="Set TILEWRIGHT_MEMORY_LIMIT to detect this earlier",
        ) from error
    except RecursionError:
        raise  # only the caller who began the compilation knows its recursion depth
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
