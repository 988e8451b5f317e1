"""What operators declare about themselves, for passes and rules.

A definition lists its traits (`OpDef(..., traits=POINTWISE | COMMUTATIVE)`), and a pass checks
`has_trait(operation, POINTWISE)`. `tilewright.testing.traits` tests each by running the operator.
"""

from __future__ import annotations

from enum import Flag, auto


class Trait(Flag):
    """A property of an operator for all attributes, operand types and versions."""

    NONE = 0
    #: An element of the result is a function of the operands' elements at its place, which are
    #: broadcast as NumPy does (from version 7 on; CastLike takes only the type of its second).
    POINTWISE = auto()
    #: The first two operands may be exchanged.
    COMMUTATIVE = auto()
    #: Applied to its own result, with the same other operands and attributes, it changes nothing.
    IDEMPOTENT = auto()
    #: Each element of the result is one of the first operand's, at a place that does not depend on
    #: its elements.
    MOVES_DATA = auto()
    #: Each element of the result is one of any operand's, and none is computed with: their places
    #: do not depend on the elements.
    JOINS = auto()
    #: Each element of the result is one of the first operand's; which one, its order decides, so
    #: that the operator commutes with increasing functions.
    SELECTS = auto()
    #: The first operand and result are feature maps [batch, channel, spatial...].
    SPATIAL = auto()
    #: The axes of the result are others than those of the operands: no layout passes through.
    CHANGES_AXES = auto()
    #: The first two operands and the result are stacks of matrices, numbered by all axes but the
    #: last two; a matrix of the result depends only on those of its number.
    STACKS = auto()
    #: Two runs may differ: neither folded, nor merged with another.
    IMPURE = auto()
    #: Gives real numbers for integers with a scale. Rules look for the integers, so it is not
    #: folded while types are inferred.
    DEQUANTIZES = auto()
    #: Is there to be computed in each call: not folded.
    LATE = auto()
    #: The operands may be floats of different types: its Computations convert them.
    MIXES_TYPES = auto()


POINTWISE = Trait.POINTWISE
COMMUTATIVE = Trait.COMMUTATIVE
IDEMPOTENT = Trait.IDEMPOTENT
MOVES_DATA = Trait.MOVES_DATA
JOINS = Trait.JOINS
SELECTS = Trait.SELECTS
SPATIAL = Trait.SPATIAL
CHANGES_AXES = Trait.CHANGES_AXES
STACKS = Trait.STACKS
IMPURE = Trait.IMPURE
DEQUANTIZES = Trait.DEQUANTIZES
LATE = Trait.LATE
MIXES_TYPES = Trait.MIXES_TYPES
