"""Products of tiles (AMX): loops over the reduction around tile loads and products.

The registers' shapes are a configuration of each thread. A function whose tiles have one shape is
configured where it starts, any other before each of its products.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tilewright.base.dataclass import dataclass
from tilewright.loops.nodes import Operand, Unit
from tilewright.runtime.abi import CTX_STATUS, STATUS_TILES
from tilewright.targets.cpu.intrinsics import TILE, TILE_REGISTERS
from tilewright.targets.llvm.emit_expr import Expressions
from tilewright.targets.llvm.emit_text import LlvmValue, integer

# Rows of the tiles of results and of the row operand; tiles of columns side by side.
TileShape = tuple[int, int]


def tile_config(shape: TileShape) -> bytes:
    """What LDTILECFG reads (Intel's SDM): palette 1, of each register bytes of a row and rows."""
    rows, across = shape
    heights = [rows] * (TILE_REGISTERS - across) + [TILE] * across
    widths = [4 * TILE, 0] * TILE_REGISTERS
    none = [0] * TILE_REGISTERS
    return bytes([1, *[0] * 15, *widths, *none, *none, *heights, *none])


@dataclass(frozen=True, slots=True)
class TileProduct:
    """`out[i, g, j] (+)= sum over a[i, g, t, u, kb, k] * b[t, u, kb, k, j]` in tile registers.

    The first registers hold the results, the last one or two the columns of b, those between rows
    of a, in turn. adds: to results in memory, else they start from 0.
    """

    instruction: str
    adds: bool

    def __call__(self, x: Expressions, s: Unit) -> None:
        assert s.intrinsic is not None
        a, b, out = s.operands
        rows, groups, columns, *steps = s.intrinsic.sizes[:6]
        across = columns // TILE
        shape = rows, across
        x.tiles.add(shape)
        x.line(_configured(shape))
        places = [
            moved(x, _place(x, out), 4 * (out.strides[1] * g + TILE * j))
            for g in range(groups)
            for j in range(across)
        ]
        width = 4 * out.strides[0]
        for n, p in enumerate(places):
            if self.adds:
                _load(x, n, p, width)
            else:
                x.line(f"call void @llvm.x86.tilezero(i8 {n})")
        strides = zip(steps, a.strides[2:5], b.strides[:3], strict=True)
        loops = [(n, p, q) for n, p, q in strides if n > 1]
        self._loops(x, s, (_place(x, a), _place(x, b)), loops)
        for n, p in enumerate(places):
            x.line(f"call void @llvm.x86.tilestored64(i8 {n}, {p.typed}, i64 {width})")

    def _loops(
        self,
        x: Expressions,
        s: Unit,
        starts: tuple[LlvmValue, LlvmValue],
        loops: Sequence[tuple[int, int, int]],
    ) -> None:
        """Steps of the reduction; loops: how many, and how far both operands move, outermost
        first."""
        if not loops:
            self._step(x, s, *starts)
            return
        (steps, *moves), *inner = loops
        size = s.operands[0].buffer.dtype.itemsize
        loop = _Loop(x)
        left, right = (
            x.ins(
                f"getelementptr i8, {p.typed}, i64 {_scaled(x, loop.k, size * n)}",
                "ptr",
            )
            for p, n in zip(starts, moves, strict=True)
        )
        self._loops(x, s, (left, right), inner)
        loop.close(steps)

    def _step(self, x: Expressions, s: Unit, left: LlvmValue, right: LlvmValue) -> None:
        """A product of the tiles at these places, added to the results."""
        assert s.intrinsic is not None
        a, b, _ = s.operands
        _, groups, columns, *_ = s.intrinsic.sizes
        size, across = a.buffer.dtype.itemsize, columns // TILE
        for j in range(across):
            place = moved(x, right, 4 * TILE * j)
            _load(x, TILE_REGISTERS - across + j, place, size * b.strides[3])
        between = range(groups * across, TILE_REGISTERS - across)
        for g in range(groups):
            row = between[g % len(between)]
            place = moved(x, left, g * size * a.strides[1])
            _load(x, row, place, size * a.strides[0])
            for j in range(across):
                column = TILE_REGISTERS - across + j
                registers = f"i8 {g * across + j}, i8 {row}, i8 {column}"
                x.line(f"call void @{self.instruction}({registers})")


class _Loop:
    """A loop that runs at least once, from its labels and counter on; `close` ends it."""

    def __init__(self, x: Expressions) -> None:
        self._x = x
        before, self._head, self._after = (x.fresh(n) for n in ("pre", "head", "after"))
        self.k = x.fresh("k")
        self._following = x.fresh("k")
        self._latch = x.fresh("latch")
        x.line(f"br label {before}")
        x.label(before)
        x.line(f"br label {self._head}")
        x.label(self._head)
        x.line(
            f"{self.k} = phi i64 [ 0, {before} ], [ {self._following}, {self._latch} ]"
        )

    def close(self, steps: int) -> None:
        """The end of the loop's body, which runs so many times."""
        x = self._x
        x.line(f"br label {self._latch}")
        x.label(self._latch)
        x.line(f"{self._following} = add nuw nsw i64 {self.k}, 1")
        again = x.compare("icmp slt", LlvmValue(self._following, "i64"), integer(steps))
        x.line(f"br {again.typed}, label {self._head}, label {self._after}")
        x.label(self._after)


def _scaled(x: Expressions, k: str, factor: int) -> str:
    return x.binary("mul nuw nsw", LlvmValue(k, "i64"), integer(factor)).text


def _place(x: Expressions, o: Operand) -> LlvmValue:
    return x.access(o.buffer, o.index).pointer


def moved(x: Expressions, p: LlvmValue, offset: int) -> LlvmValue:
    """The address so many bytes on."""
    if offset:
        return x.ins(f"getelementptr i8, {p.typed}, i64 {offset}", "ptr")
    return p


def _load(x: Expressions, tile: int, p: LlvmValue, stride: int) -> None:
    x.line(f"call void @llvm.x86.tileloadd64(i8 {tile}, {p.typed}, i64 {stride})")


def _configured(shape: TileShape) -> str:
    return f"call void @llvm.x86.ldtilecfg(ptr @{_name(shape)})"


def _name(shape: TileShape) -> str:
    return "tile_config.{}.{}".format(*shape)


def with_tiles(
    lines: Sequence[str], shapes: Collection[TileShape], asks: bool
) -> list[str]:
    """The body of a function whose tiles have these shapes, with its entry code and its end.

    asks: it is a kernel's own function, which first requests permission from Linux (for the whole
    process; repeating this is harmless), returns with a status if it is denied, and releases the
    tiles of its thread in the end.
    """
    entry = [*_PERMISSION] if asks else []
    body = list(lines)
    if len(shapes) == 1:
        (once,) = map(_configured, shapes)
        body = [f"  {once}", *(line for line in body if line.strip() != once)]
    release = ["  call void @llvm.x86.tilerelease()"] if asks else []
    return [*entry, *body, *release]


_PERMISSION = (
    "  %tile.answer = call i64 @tile_permission()",
    "  %tile.refused = icmp ne i64 %tile.answer, 0",
    "  br i1 %tile.refused, label %tile.stop, label %tile.start",
    "tile.stop:",
    f"  %tile.status = getelementptr i8, ptr %ctx, i64 {8 * CTX_STATUS}",
    f"  store atomic i64 {1 << 8 | STATUS_TILES}, ptr %tile.status monotonic, align 8",
    "  ret void",
    "tile.start:",
)


def tile_support(shapes: Collection[TileShape]) -> str:
    """What a module that uses tiles defines: their configurations, and the call for permission.

    arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA).
    """
    configs = (
        f"@{_name(shape)} = internal constant [64 x i8] [{_bytes(tile_config(shape))}], align 64"
        for shape in sorted(shapes)
    )
    return "\n".join(
        [
            "define internal i64 @tile_permission() #0 {",
            '  %r = call i64 asm sideeffect "syscall", '
            '"={rax},{rax},{rdi},{rsi},~{rcx},~{r11},~{memory}"(i64 158, i64 4131, i64 18)',
            "  ret i64 %r",
            "}",
            *configs,
            "",
        ]
    )


def _bytes(data: bytes) -> str:
    return ", ".join(f"i8 {n}" for n in data)
