"""Constants that are packed from weights when a file is read."""

import dataclasses
import zipfile

import numpy as np
import pytest

from tests.runtime import native
from tests.runtime.test_bundle import rewrite
from tilewright.base.errors import ArtifactError
from tilewright.runtime import buffer, bundle, packed
from tilewright.runtime.packed import Constants, PackedConstant
from tilewright.runtime.packing import Packing, PackingPart

KIB = 1 << 10
PLAIN = (
    68 * KIB + 5 * 64
)  # of constants in front of the first packed one, between, and behind


def doubled(count):
    """Each element, and behind all of them twice each."""
    return Packing(
        (
            PackingPart(
                (count,), (0,), (1,), (("scale", 0, 2.0),), ((0, 0), (1, count)), (1,)
            ),
        )
    )


def turned(rows, columns):
    return Packing(
        (PackingPart((columns, rows), (0,), (1, columns), (), ((0, 0),), (rows, 1)),)
    )


def model(plain=PLAIN, count=300 * KIB + 80):
    """A packed constant of a weight that only the file has, and one of a constant."""
    rng = np.random.default_rng(0)
    weight = rng.standard_normal(count).astype(np.float32)
    first = PackedConstant(plain, -1, weight.nbytes, "float32", doubled(count))
    kept = first.end + 64
    second = PackedConstant(first.end + plain, kept, 4 * KIB, "float32", turned(8, 128))
    block = rng.integers(0, 256, second.end + plain, np.uint8)
    block[first.at : first.end].view(np.float32)[:] = [*weight, *(weight * 2)]
    known = block[kept : kept + 4 * KIB].view(np.float32).reshape(8, 128)
    block[second.at : second.end].view(np.float32)[:] = known.T.reshape(-1)
    return dataclasses.replace(
        native.model(),
        constants=block,
        packed=(first, second),
        weights=(weight.view(np.uint8),),
    )


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    path = tmp_path_factory.mktemp("packed") / "model.tw"
    bundle.save(model(), path)
    return path


@pytest.mark.parametrize("verify", [True, False])
def test_constants_come_back_and_are_written_the_same_again(artifact, tmp_path, verify):
    found = bundle.load(artifact, verify=verify)
    np.testing.assert_array_equal(found.constants, model().constants)
    assert found.packed == model().packed and not found.constants.flags.writeable
    bundle.save(found, tmp_path / "again.tw")
    assert (tmp_path / "again.tw").read_bytes() == artifact.read_bytes()


def test_a_file_has_the_weight_and_not_what_is_packed_of_it(artifact):
    with zipfile.ZipFile(artifact) as archive:
        stored = archive.getinfo("constants.bin").file_size
    made = model()
    least = (
        len(made.constants) - sum(p.nbytes for p in made.packed) + len(made.weights[0])
    )
    # Each of the three runs begins as far into a page as in memory.
    assert least <= stored <= least + 3 * 4096


@pytest.mark.parametrize("whole", [False, True])
def test_what_a_file_has_is_not_copied(whole):
    """Padding aside; the pieces have the bytes that are counted."""
    held = model().held
    pieces = list(held.stored(whole))
    assert sum(map(len, pieces)) == held.stored_bytes(whole)
    own = [held.block, *held.weights]
    for piece in pieces:
        assert not piece.any() or any(np.shares_memory(piece, o) for o in own)


def test_weights_that_end_within_a_line_are_padded():
    block, weight = np.ones(5, np.uint8), np.ones(3, np.uint8)
    held = Constants(block, weights=(weight, weight))
    found = np.concatenate(list(held.stored()))
    assert found.size == held.stored_bytes() and found.size % 64 == 0
    assert np.flatnonzero(found).tolist() == [*range(5), 64, 65, 66, 128, 129, 130]


def test_large_runs_are_mapped_where_their_pages_lie_alike(artifact):
    kept = bundle.load(artifact)
    first, second = kept.packed
    assert mapped(artifact, kept.constants) == [
        (0, PLAIN // 4096 * 4096),
        whole_pages(first.end, second.at),
        whole_pages(second.end, len(kept.constants)),
    ]


def mapped(path, constants):
    """Where the constants are pages of the file, and how many bytes."""
    start = constants.ctypes.data
    found = []
    with open("/proc/self/maps") as file:
        for line in file:
            begin, end = (int(x, 16) for x in line.split()[0].split("-"))
            if str(path) in line and start <= begin < start + len(constants):
                found.append((begin - start, end - begin))
    return found


def page_aligned(nbytes):
    memory = np.empty(nbytes + 4096, np.uint8)
    start = -memory.ctypes.data % 4096
    return memory[start : start + nbytes]


def whole_pages(begin, end):
    first, last = -(-begin // 4096) * 4096, end // 4096 * 4096
    return first, last - first


@pytest.mark.parametrize("mapping", ["small", "elsewhere", "another phase"])
def test_what_cannot_be_mapped_is_copied(artifact, tmp_path, monkeypatch, mapping):
    made, path = model(), artifact
    if mapping == "small":
        # Memory of the allocator's is not mapped over, wherever it lies.
        monkeypatch.setattr(buffer, "arena", page_aligned)
        made, path = model(count=16 * KIB), tmp_path / "small.tw"
        bundle.save(made, path)
    elif mapping == "elsewhere":
        monkeypatch.setattr("sys.platform", "darwin")
    else:
        monkeypatch.setattr(packed, "PAGE", 64)
        path = tmp_path / "phase.tw"
        bundle.save(made, path)
    found = bundle.load(path)
    np.testing.assert_array_equal(found.constants, made.constants)
    if mapping != "another phase":
        assert not mapped(path, found.constants)


def test_a_file_of_a_cache_has_all_and_nothing_is_packed(
    artifact, tmp_path, monkeypatch
):
    kept, again = tmp_path / "kept", tmp_path / "again.tw"
    bundle.write(model(), kept, private=True)
    monkeypatch.delattr(packed, "_pack")
    found = bundle.load(kept, verify=True)
    np.testing.assert_array_equal(found.constants, model().constants)
    assert found.packed == model().packed
    ((at, size),) = mapped(kept, found.constants)
    assert at == 0 and size >= len(found.constants)
    bundle.save(found, again)
    assert again.read_bytes() == artifact.read_bytes()


def test_much_is_packed_in_several_threads(monkeypatch, artifact):
    monkeypatch.setattr(packed, "_ALONE", 0)
    np.testing.assert_array_equal(bundle.load(artifact).constants, model().constants)


def change(**values):
    """Change fields of the first packed constant, or of the constants."""
    fields = ["at", "weight", "weight_bytes", "dtype", "packing"]

    def apply(head):
        held = head["constants"]
        for name, value in values.items():
            if name in fields:
                held["packed"][0][fields.index(name)] = value
            else:
                held[name] = value(held[name]) if callable(value) else value

    return apply


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (change(at=PLAIN + 32), "a packed constant is at"),
        (change(at=1 << 40), "a packed constant is at"),
        (change(packed=lambda rows: rows[::-1]), "a packed constant is at"),
        (change(weight=-2), "IndexError"),
        (change(weight=0), "a weight of 1229120 bytes is at 0"),
        (change(weight=PLAIN), "a weight of 1229120 bytes is at"),
        (change(weight=model().packed[1].end), "a weight of 1229120 bytes is at"),
        (change(weight_bytes=64), "a weight of 64 bytes"),
        (change(weight_bytes=-1), "expected a count"),
        (change(dtype="float16"), r"bytes of constants, not|strides"),
        (change(dtype="float31"), "unknown dtype"),
        (change(packing=2), "IndexError"),
        (change(bytes=lambda n: n + 64), "bytes of constants, not"),
        (change(bytes=lambda n: n - 64), "bytes of constants, not"),
        (change(bytes=-1), "expected a count"),
        (change(weights=[]), "IndexError"),
        (change(weights=lambda sizes: [*sizes, 64]), "bytes of constants, not"),
        (change(block="whole"), "bytes of constants, not"),
        (change(block="half"), "unknown form of a block"),
        (change(packings=[[]]), "IndexError|is at"),
        (change(packings=7), "expected list"),
    ],
)  # fmt: skip
def test_damaged_descriptions_are_refused(artifact, tmp_path, damage, message):
    path = rewrite(artifact, tmp_path / "bad.tw", damage)
    with pytest.raises(ArtifactError, match=message) as error:
        bundle.load(path)
    assert str(path) in str(error.value)


def test_no_file_asks_for_much_more_memory_than_it_has_bytes(tmp_path):
    weight = np.zeros(64, np.uint8)
    many = Packing((PackingPart((16 * 17,), (0,), (0,), (), ((0, 0),), (1,)),))
    constant = PackedConstant(0, -1, 64, "float32", many)
    block = np.zeros(constant.end, np.uint8)
    bad = dataclasses.replace(
        native.model(), constants=block, packed=(constant,), weights=(weight,)
    )
    bundle.save(bad, tmp_path / "bad.tw")
    with pytest.raises(ArtifactError, match="1088 bytes of constants are made of 64"):
        bundle.load(tmp_path / "bad.tw")
