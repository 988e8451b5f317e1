"""Input data: from files, at random from a seed, symbolic extents; what does not fit is refused."""

import numpy as np
import pytest

from tilewright.base import dtypes
from tilewright.base.errors import InputError, MemoryLimitError
from tilewright.cli.inputs import InputType, gather, random_array

IMAGE = InputType("image", dtypes.float32, ("batch", 3))
IDS = InputType("ids", dtypes.int64, (2, "length"))


@pytest.fixture
def image(tmp_path):
    path = tmp_path / "image.npy"
    np.save(path, np.ones((4, 3), np.float32))
    return path


def test_files_and_random_values(image):
    found = gather([IMAGE, IDS], [("image", image)], dims={"length": 5})
    assert (found["image"] == 1).all() and found["image"].shape == (4, 3)
    assert found["ids"].shape == (2, 5) and found["ids"].dtype == np.int64
    assert set(found["ids"].ravel()) <= {0, 1}


def test_archive_gives_inputs_by_name(tmp_path):
    path = tmp_path / "all.npz"
    np.savez(path, image=np.zeros((1, 3), np.float32), ids=np.ones((2, 7), np.int64))
    found = gather([IMAGE, IDS], archive=path)
    assert found["ids"].shape == (2, 7)


def test_same_seed_same_values_whatever_the_order():
    one = gather([IMAGE, IDS], seed=3, dims={"batch": 2, "length": 2})
    other = gather([IDS, IMAGE], seed=3, dims={"batch": 2, "length": 2})
    assert (one["image"] == other["image"]).all()
    assert (one["image"] != gather([IMAGE], seed=4, dims={"batch": 2})["image"]).any()


def test_symbolic_extent_without_a_value_is_1_and_said(capsys):
    assert gather([IMAGE])["image"].shape == (1, 3)
    assert "'batch' is not given: assumed 1" in capsys.readouterr().err


def test_one_symbol_has_one_value_everywhere(image, capsys):
    more = InputType("more", dtypes.float32, ("batch",))
    assert gather([IMAGE, more], [("image", image)])["more"].shape == (4,)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("dtype", [d for d in dtypes.ALL if not d.is_string], ids=str)
def test_random_values_of_every_dtype(dtype):
    array = random_array("x", dtype, (3, 2), 0)
    assert array.dtype == dtype.numpy and array.shape == (3, 2)


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        (
            InputType("image", dtypes.float16, (4, 3)),
            "expected float16[4, 3], got float32[4, 3]",
        ),
        (
            InputType("image", dtypes.float32, (4, 4)),
            "expected float32[4, 4], got float32[4, 3]",
        ),
        (
            InputType("image", dtypes.float32, (4,)),
            "expected float32[4], got float32[4, 3]",
        ),
        (InputType("image", dtypes.float32, ("n", "n")), "with n=4"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(image, wanted, text):
    with pytest.raises(InputError) as caught:
        gather([wanted], [("image", image)])
    assert text in str(caught.value) and "image" in caught.value.where


def test_unknown_name_is_refused(image):
    with pytest.raises(InputError, match=r"no input 'imag'.*Did you mean 'image'"):
        gather([IMAGE], [("imag", image)])


def test_narrow_floats_survive_the_file_format(tmp_path):
    values = np.arange(6).reshape(2, 3).astype(dtypes.bfloat16.numpy)
    np.save(tmp_path / "b.npy", values)
    found = gather(
        [InputType("b", dtypes.bfloat16, (2, 3))], [("b", tmp_path / "b.npy")]
    )
    assert (found["b"] == values).all()


@pytest.mark.parametrize(
    "content", [b"", b"no array", b"\x93NUMPY\x01\x00\xff\xff", b"PK\x03\x04"]
)
def test_broken_files_are_refused(tmp_path, content):
    path = tmp_path / "broken"
    path.write_bytes(content)
    for given in ({"files": [("image", path)]}, {"archive": path}):
        with pytest.raises(
            InputError, match=r"broken: (cannot be read|not a NumPy file)"
        ):
            gather([IMAGE], **given)


def test_pickled_objects_are_refused(tmp_path):
    path = tmp_path / "objects.npy"
    np.save(path, np.array([object()], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="without objects"):
        gather([IMAGE], [("image", path)])


def test_wrong_kind_of_file_names_the_other_option(tmp_path, image):
    np.savez(tmp_path / "all.npz", image=np.zeros(3))
    with pytest.raises(InputError, match="Use --inputs"):
        gather([IMAGE], [("image", tmp_path / "all.npz")])
    with pytest.raises(InputError, match="Use --input "):
        gather([IMAGE], archive=image)


def test_what_cannot_be_drawn_must_be_given():
    with pytest.raises(InputError, match=r"for an input of strings\. .*--input text="):
        gather([InputType("text", dtypes.string, (2,))])
    with pytest.raises(InputError, match="unknown type or rank"):
        gather([InputType("x", dtypes.float32, None)])


def test_absurd_sizes_are_an_error_of_ours():
    said = r"^input 'x': float32\[1000000000, 1000000\] has 3\.55 PiB, which cannot"
    with pytest.raises(MemoryLimitError, match=said):
        random_array("x", dtypes.float32, (10**9, 10**6), 0)


def test_two_files_for_one_input_are_refused(image):
    with pytest.raises(
        InputError, match="input 'image' is given 2 times; give one file"
    ):
        gather([IMAGE, IDS], [("image", image), ("image", image)])
