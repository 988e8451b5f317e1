"""Detecting the x86-64 processor: a function in LLVM assembly, without an assembler.

`cpuid` and `xgetbv` are embedded as bytes before otherwise empty functions: llvmlite assembles for
its own architecture only, but libraries are also built for others. Leaves and bits: Intel's SDM,
volume 2A, CPUID; AMD's APM, volume 3, appendix E.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

_EXTENDED: Final = 0x80000001
_Row = tuple[int, int, str, int]  # leaf, its part, the register, the bit


def _rows(leaf: int, part: int, register: str, bits: str) -> Iterator[tuple[str, _Row]]:
    for pair in bits.split():
        feature, bit = pair.split(":")
        yield feature, (leaf, part, register, int(bit))


# LLVM's name of a feature: where the processor says that it has it.
FEATURES: Final[Mapping[str, _Row]] = dict(
    [
        *_rows(
            1,
            0,
            "ecx",
            "sse3:0 ssse3:9 fma:12 cx16:13 sse4.1:19 sse4.2:20 movbe:22 popcnt:23 xsave:26 "
            "avx:28 f16c:29",
        ),
        *_rows(1, 0, "edx", "cx8:8 cmov:15 mmx:23 fxsr:24 sse:25 sse2:26"),
        *_rows(
            7,
            0,
            "ebx",
            "bmi:3 avx2:5 bmi2:8 avx512f:16 avx512dq:17 adx:19 avx512ifma:21 avx512cd:28 "
            "avx512bw:30 avx512vl:31",
        ),
        *_rows(
            7,
            0,
            "ecx",
            "avx512vbmi:1 avx512vbmi2:6 gfni:8 avx512vnni:11 avx512bitalg:12 "
            "avx512vpopcntdq:14",
        ),
        *_rows(7, 0, "edx", "avx512vp2intersect:8 avx512fp16:23"),
        *_rows(7, 1, "eax", "avxvnni:4 avx512bf16:5"),
        *_rows(_EXTENDED, 0, "ecx", "sahf:0 lzcnt:5"),
        *_rows(_EXTENDED, 0, "edx", "64bit:29"),
    ]
)
_OSXSAVE: Final[_Row] = (1, 0, "ecx", 27)
_REGISTERS: Final = ("eax", "ebx", "ecx", "edx")
# Bits of XCR0: the system saves the registers of AVX, and of AVX-512.
_SAVED: Final = {"avx512": 0xE6, "avx": 0x06}

# void cpuid(i32 leaf, i32 part, ptr four): push rbx; mov r8,rdx; mov eax,edi; mov ecx,esi; cpuid;
# mov [r8],eax; mov [r8+4],ebx; mov [r8+8],ecx; mov [r8+12],edx; pop rbx; ret
_CPUID: Final = "534989D089F889F10FA241890041895804418948084189500C5BC3"
# i32 xgetbv(): xor ecx,ecx; xgetbv; ret
_XGETBV: Final = "31C90F01D0C3"


def processor_text(
    name: str, symbol: str, wanted: Sequence[Collection[str]], group: str
) -> str:
    """`i32 @symbol()`: the number, from 1, of the first of `wanted` that this processor has, or 0.

    name: what its own symbols begin with. wanted: features, all in FEATURES. group: attributes of
    functions. The answer is kept: on virtual machines cpuid takes microseconds.
    """
    rows = [_OSXSAVE, *(FEATURES[f] for features in wanted for f in features)]
    leaves = sorted({row[:2] for row in rows})
    lines = [*_HEAD.format(name=name, symbol=symbol, group=group).splitlines()]
    for leaf, part in leaves:
        at = _leaf(leaf, part)
        lines += [
            f"  %{at} = alloca [4 x i32], align 16",
            f"  call x86_64_sysvcc void @{name}.cpuid(i32 {leaf & 0x80000000}, i32 0, ptr %{at})",
            f"  %{at}.most = load i32, ptr %{at}, align 16",
            f"  %{at}.known = icmp uge i32 %{at}.most, {leaf}",
            f"  call x86_64_sysvcc void @{name}.cpuid(i32 {leaf}, i32 {part}, ptr %{at})",
        ]
    lines += _saved(name)
    for number, features in enumerate(wanted):
        lines += _tested(number, features)
    answer = "i32 0"
    for number in reversed(range(len(wanted))):
        lines.append(
            f"  %answer{number} = select i1 %has{number}, i32 {number + 1}, {answer}"
        )
        answer = f"i32 %answer{number}"
    return "\n".join([*lines, *_TAIL.format(name=name, answer=answer).splitlines()])


def _leaf(leaf: int, part: int) -> str:
    return f"leaf{leaf:x}.{part}"


def _saved(name: str) -> list[str]:
    """What the system saves: 0 where it saves nothing but the first registers."""
    at = _leaf(*_OSXSAVE[:2])
    return [
        f"  %osxsave.at = getelementptr i8, ptr %{at}, i64 8",
        "  %osxsave.all = load i32, ptr %osxsave.at, align 4",
        f"  %osxsave.bit = and i32 %osxsave.all, {1 << _OSXSAVE[3]}",
        "  %osxsave = icmp ne i32 %osxsave.bit, 0",
        "  br i1 %osxsave, label %ask, label %asked",
        "ask:",
        f"  %xcr0 = call x86_64_sysvcc i32 @{name}.xgetbv()",
        "  br label %asked",
        "asked:",
        "  %saved = phi i32 [ 0, %find ], [ %xcr0, %ask ]",
    ]


def _tested(number: int, features: Collection[str]) -> list[str]:
    """`%hasN`: whether the processor has all of these, and the system saves their registers."""
    masks: dict[tuple[int, int, str], int] = {}
    for leaf, part, register, bit in (FEATURES[f] for f in features):
        place = leaf, part, register
        masks[place] = masks.get(place, 0) | 1 << bit
    lines, found = [], "true"
    for n, ((leaf, part, register), mask) in enumerate(sorted(masks.items())):
        at, t = _leaf(leaf, part), f"t{number}.{n}"
        offset = 4 * _REGISTERS.index(register)
        lines += [
            f"  %{t}.at = getelementptr i8, ptr %{at}, i64 {offset}",
            f"  %{t}.all = load i32, ptr %{t}.at, align 4",
            f"  %{t}.bits = and i32 %{t}.all, {mask}",
            f"  %{t}.equal = icmp eq i32 %{t}.bits, {mask}",
            f"  %{t}.both = and i1 %{t}.equal, %{at}.known",
            f"  %{t} = and i1 %{t}.both, {found}",
        ]
        found = f"%{t}"
    needs = [m for p, m in _SAVED.items() if any(f.startswith(p) for f in features)]
    mask = max(needs, default=0)
    return [
        *lines,
        f"  %saved{number} = and i32 %saved, {mask}",
        f"  %saves{number} = icmp eq i32 %saved{number}, {mask}",
        f"  %has{number} = and i1 %saves{number}, {found}",
    ]


def _code(text: str) -> str:
    data = bytes.fromhex(text)
    return f'[{len(data)} x i8] c"' + "".join(f"\\{b:02X}" for b in data) + '"'


_HEAD: Final = f"""\
@{{name}}.processor = internal global i32 -1, align 4
define internal x86_64_sysvcc void @{{name}}.cpuid(i32 %leaf, i32 %part, ptr %four) noinline \
{{group}} prologue {_code(_CPUID)} {{{{
  ret void
}}}}
define internal x86_64_sysvcc i32 @{{name}}.xgetbv() noinline {{group}} prologue \
{_code(_XGETBV)} {{{{
  ret i32 0
}}}}
define internal i32 @{{symbol}}() {{group}} {{{{
entry:
  %held = load atomic i32, ptr @{{name}}.processor monotonic, align 4
  %known = icmp sge i32 %held, 0
  br i1 %known, label %done, label %find
done:
  ret i32 %held
find:"""
_TAIL: Final = """\
  store atomic {answer}, ptr @{name}.processor monotonic, align 4
  ret {answer}
}}"""
