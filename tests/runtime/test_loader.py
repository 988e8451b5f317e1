"""The loader: objects are linked among themselves, and a damaged one never crashes anything."""

import ctypes
import os
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime.native import assemble
from tilewright.base.errors import ArtifactError
from tilewright.runtime import elf
from tilewright.runtime.loader import link

EVEN = """
declare i32 @odd(i32)
define i32 @even(i32 %n) {
  %zero = icmp eq i32 %n, 0
  br i1 %zero, label %yes, label %ask
yes:
  ret i32 1
ask:
  %m = sub i32 %n, 1
  %r = call i32 @odd(i32 %m)
  ret i32 %r
}
"""
ODD = """
declare i32 @even(i32)
define i32 @odd(i32 %n) {
  %zero = icmp eq i32 %n, 0
  br i1 %zero, label %no, label %ask
no:
  ret i32 0
ask:
  %m = sub i32 %n, 1
  %r = call i32 @even(i32 %m)
  ret i32 %r
}
"""
DATA = """
@numbers = constant [4 x i64] [i64 2, i64 3, i64 5, i64 7]
@counter = global i64 40
@zeros = internal global [1000 x i64] zeroinitializer
@places = constant [2 x ptr] [ptr @counter, ptr getelementptr (i64, ptr @numbers, i64 3)]
"""
USER = """
@numbers = external constant [4 x i64]
@counter = external global i64
@places = external constant [2 x ptr]
@own = internal global [100 x i64] zeroinitializer
define i64 @number(i64 %n) {
  %p = getelementptr [4 x i64], ptr @numbers, i64 0, i64 %n
  %v = load i64, ptr %p
  ret i64 %v
}
define i64 @count() {
  %v = load i64, ptr @counter
  %w = add i64 %v, 1
  store i64 %w, ptr @counter
  ret i64 %w
}
define i64 @through(i64 %n) {
  %p = getelementptr [2 x ptr], ptr @places, i64 0, i64 %n
  %q = load ptr, ptr %p
  %v = load i64, ptr %q
  ret i64 %v
}
define i64 @bss(i64 %n) {
  %p = getelementptr [100 x i64], ptr @own, i64 0, i64 %n
  %v = load i64, ptr %p
  %w = add i64 %v, %n
  store i64 %w, ptr %p
  ret i64 %w
}
"""


def function(image, name, result=ctypes.c_int64, argument=ctypes.c_int64):
    return ctypes.CFUNCTYPE(result, argument)(image.address(name))


def test_two_objects_call_each_other():
    image = link([assemble(EVEN), assemble(ODD)])
    even = function(image, "even", ctypes.c_int32, ctypes.c_int32)
    assert [even(n) for n in range(6)] == [1, 0, 1, 0, 1, 0]
    assert set(image.symbols) == {"even", "odd"}
    image.close()
    with pytest.raises(ArtifactError, match="was closed"):
        image.address("even")


def test_data_constants_pointers_and_zeros():
    code, data = assemble(USER), assemble(DATA)
    kinds = {r.type for o in (code, data) for r in elf.parse(o).relocations}
    assert {1, 2} & kinds and {9, 41, 42} & kinds, "absolute, relative and GOT"
    image = link([code, data])
    assert [function(image, "number")(n) for n in range(4)] == [2, 3, 5, 7]
    assert [function(image, "count")(0) for _ in range(2)] == [41, 42]
    assert [function(image, "through")(n) for n in range(2)] == [42, 7]
    assert [function(image, "bss")(99) for _ in range(2)] == [99, 198]


def test_code_and_constants_cannot_be_written():
    image = link([assemble(USER), assemble(DATA)])
    with open("/proc/self/maps") as file:
        rights = {}
        for line in file:
            start, end, right = re.match(r"(\w+)-(\w+) (\S+)", line).groups()
            for name in ("number", "numbers", "counter"):
                if int(start, 16) <= image.address(name) < int(end, 16):
                    rights[name] = right
    assert rights == {"number": "r-xp", "numbers": "r--p", "counter": "rw-p"}


def test_nothing_outside_is_found():
    libc = """
    declare i64 @strlen(ptr)
    define i64 @f(ptr %p) {
      %r = call i64 @strlen(ptr %p)
      ret i64 %r
    }"""
    with pytest.raises(ArtifactError, match=r"kernels needs the symbol 'strlen'"):
        link([assemble(libc)], ["kernels"])


def test_two_definitions_are_refused_unless_weak():
    with pytest.raises(
        ArtifactError, match="object 0 and object 1 both define the symbol 'even'"
    ):
        link([assemble(EVEN), assemble(EVEN), assemble(ODD)])
    one = assemble("define weak i32 @f() {\n ret i32 1\n}")
    two = assemble("define i32 @f() {\n ret i32 2\n}")
    for order in ([one, two], [two, one]):
        assert ctypes.CFUNCTYPE(ctypes.c_int32)(link(order).address("f"))() == 2


def test_more_than_a_displacement_reaches_is_refused():
    """Zeros take no place in an object: here 1 GiB in each of two, beside the code."""
    zeros = f"@x = internal global [{1 << 30} x i8] zeroinitializer"
    objects = [
        assemble(
            f"{zeros}\ndefine i8 @f{n}() {{\n %v = load i8, ptr @x\n ret i8 %v\n}}"
        )
        for n in range(2)
    ]
    with pytest.raises(ArtifactError, match=f"over {1 << 31} bytes"):
        link(objects)


def test_position_dependent_code_is_refused_by_relocation():
    place = "getelementptr [9 x i32], ptr @x, i64 0, i64 %n"
    zeros = "@x = internal global [9 x i32] zeroinitializer"
    body = f" %p = {place}\n %v = load i32, ptr %p\n ret i32 %v"
    text = f"{zeros}\ndefine i32 @f(i64 %n) {{\n{body}\n}}"
    with pytest.raises(
        ArtifactError, match=r"R_X86_64_32S? in .text: not position independent"
    ):
        link([assemble(text, reloc="static")])


def test_thread_local_data_is_refused():
    body = "%v = load i32, ptr @x\n ret i32 %v"
    text = f"@x = thread_local global i32 1\ndefine i32 @f() {{\n {body}\n}}"
    with pytest.raises(ArtifactError, match="thread-local"):
        link([assemble(text)])


def test_another_machine_is_refused_by_name():
    arm = assemble(
        "define i32 @f() {\n ret i32 1\n}", triple="aarch64-unknown-linux-gnu"
    )
    with pytest.raises(
        ArtifactError, match="is code for aarch64; this loader runs x86_64"
    ):
        link([arm])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is not an ELF file"),
        (b"\x7fELF" + bytes(80), "is no 64-bit little-endian"),
        (assemble(EVEN)[:200], "is truncated"),
        (assemble(EVEN)[:16] + b"\x02" + assemble(EVEN)[17:], "is ELF type 2"),
    ],
)
def test_what_is_no_object(data, message):
    with pytest.raises(ArtifactError, match=message):
        link([data], ["kernels"])


def perf_map():
    """Where this process writes; a process of the same number may have left its own there."""
    path = Path(f"/tmp/perf-{os.getpid()}.map")
    path.unlink(missing_ok=True)
    return path


def test_perf_sees_the_names(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_PERF_MAP", "on")
    path = perf_map()
    try:
        image = link([assemble(EVEN), assemble(ODD)])
        with open(path) as file:
            lines = [line.split() for line in file]
        assert [int(address, 16) for address, _, name in lines if name == "odd"] == [
            image.address("odd")
        ]
        assert all(int(size, 16) > 0 for _, size, _ in lines)
    finally:
        os.unlink(path)


def test_nobody_else_chooses_where_the_perf_map_goes(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEWRIGHT_PERF_MAP", "on")
    path = perf_map()
    os.symlink(tmp_path / "victim", path)
    try:
        with pytest.raises(ArtifactError, match="map for perf cannot be written"):
            link([assemble(EVEN), assemble(ODD)])
        assert not (tmp_path / "victim").exists()
    finally:
        os.unlink(path)


SOUND = [assemble(text) for text in (USER, DATA)]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 1 << 20), st.integers(1, 255)), min_size=1, max_size=4
    ),
    st.sampled_from(range(len(SOUND))),
)
def test_damage_is_refused_or_harmless_to_load(flips, which):
    damaged = bytearray(SOUND[which])
    for at, mask in flips:
        damaged[at % len(damaged)] ^= mask
    objects = list(SOUND)
    objects[which] = bytes(damaged)
    try:
        link(objects).close()
    except ArtifactError as error:
        assert "object" in str(error)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1 << 20), st.sampled_from(range(len(SOUND))))
def test_truncation_is_refused(length, which):
    objects = list(SOUND)
    objects[which] = objects[which][: length % len(objects[which])]
    with pytest.raises(ArtifactError):
        link(objects)
