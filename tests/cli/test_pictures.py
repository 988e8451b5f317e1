"""Pictures as inputs: fitted, cut and normalized as the command says."""

import sys

import numpy as np
import onnx
import pytest

from tilewright.base import dtypes
from tilewright.base.errors import InputError, UnsupportedError
from tilewright.cli.inputs import InputType, gather

Image = pytest.importorskip("PIL.Image", reason="Pillow reads pictures")

FIRST = InputType("x", dtypes.float32, ("batch", 3, 4, 4))


@pytest.fixture
def picture(tmp_path):
    """Eight wide, four high: a white quarter at the left and right, between them red over blue."""
    pixels = np.full((4, 8, 3), 255, np.uint8)
    pixels[:2, 2:6] = 255, 0, 0
    pixels[2:, 2:6] = 0, 0, 255
    path = tmp_path / "flag.png"
    Image.fromarray(pixels).save(path)
    return path


def test_the_middle_is_cut_out_and_channels_come_first(picture, capsys):
    x = gather([FIRST], [("x", picture)])["x"]
    assert x.shape == (1, 3, 4, 4) and x.dtype == np.float32 and x.flags.c_contiguous
    np.testing.assert_array_equal(x[0, 0], np.repeat([[1.0, 1, 0, 0]], 4, 0).T)
    np.testing.assert_array_equal(x[0, 1], np.zeros((4, 4)))
    np.testing.assert_array_equal(x[0, 2], np.repeat([[0.0, 0, 1, 1]], 4, 0).T)
    said = capsys.readouterr().err
    assert "flag.png, 8x4, middle 4x4, RGB, 0 to 1, without --mean and --std" in said


def test_channels_last_and_bytes(picture, capsys):
    wanted = InputType("x", dtypes.uint8, (1, 4, 8, 3))
    x = gather([wanted], [("x", picture)])["x"]
    np.testing.assert_array_equal(x[0], np.asarray(Image.open(picture)))
    assert "flag.png, 8x4, unchanged, RGB, 0 to 255" in capsys.readouterr().err


def test_symbolic_sizes_are_the_pictures_own_unless_given(picture):
    wanted = InputType("x", dtypes.float16, (3, "h", "w"))
    assert gather([wanted], [("x", picture)])["x"].shape == (3, 4, 8)
    found = gather([wanted], [("x", picture)], dims={"h": 2, "w": 2})["x"]
    assert found.shape == (3, 2, 2) and found.dtype == np.float16


def test_it_is_scaled_in_its_proportions_until_it_covers(picture, capsys):
    wanted = InputType("x", dtypes.float32, (1, 1, 8, 8))
    x = gather([wanted], [("x", picture)])["x"]
    assert "scaled to 16x8 (bilinear), middle 8x8, L" in capsys.readouterr().err
    assert x.shape == (1, 1, 8, 8)
    # Gray of red and of blue; the white sides are cut off but for what the scaling mixes.
    np.testing.assert_allclose(x[0, 0, [0, -1], 3], [76 / 255, 29 / 255], atol=1e-6)


def test_a_camera_that_was_held_sideways(picture, tmp_path):
    upright = Image.open(picture)
    tags = Image.Exif()
    tags[0x0112] = 6  # orientation: to be turned by a quarter, clockwise
    turned = tmp_path / "turned.png"
    upright.transpose(Image.Transpose.ROTATE_90).save(turned, exif=tags)
    wanted = InputType("x", dtypes.uint8, (1, 4, 8, 3))
    x = gather([wanted], [("x", turned)])["x"]
    np.testing.assert_array_equal(x[0], np.asarray(upright))


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        (InputType("x", dtypes.float32, (1, 4, 4, 4)), "which is not a picture"),
        (InputType("x", dtypes.float32, (2, 5)), "which is not a picture"),
        (InputType("x", dtypes.float32, None), "which is not a picture"),
        (InputType("x", dtypes.int64, (1, 3, 4, 4)), "a picture is uint8 or floats"),
        (
            InputType("x", dtypes.float32, (2, 3, 4, 4)),
            "expected float32\\[2, 3, 4, 4\\]",
        ),
        (InputType("y", dtypes.float32, (1, 3, 4, 4)), "no input 'x'"),
    ],
)
def test_inputs_that_take_no_picture(picture, wanted, text):
    with pytest.raises(InputError, match=text):
        gather([wanted], [("x", picture)])


def test_files_that_are_no_picture_of_their_suffix(picture, tmp_path):
    png = picture.read_bytes()
    for name, content in (
        ("noise.png", b"noise"),
        ("cut.png", png[: len(png) // 2]),
        ("png.jpg", png),  # not what its suffix says
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=r"cannot be read as (PNG|JPEG)"):
            gather([FIRST], [("x", tmp_path / name)])


def test_a_picture_of_too_many_pixels_is_refused(picture, monkeypatch):
    for most in (31, 10):  # a warning of Pillow's, and an error
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", most)
        with pytest.raises(InputError, match="pixels"):
            gather([FIRST], [("x", picture)])


def test_without_pillow_it_says_what_to_install(picture, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'tilewright\[images\]'"):
        gather([FIRST], [("x", picture)])


@pytest.fixture
def copying(tmp_path):
    """A model that gives its input."""
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["x"], ["y"])],
        "g",
        [info("x", 1, (1, 3, 4, 4))],
        [info("y", 1, (1, 3, 4, 4))],
    )
    path = tmp_path / "copy.onnx"
    sets = [onnx.helper.make_opsetid("", 18)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=sets, ir_version=9), path)
    return path


def test_the_command_normalizes_and_says_so(command, copying, picture, tmp_path):
    out = tmp_path / "y.npz"
    how = ("--input", f"x={picture}", "--mean", "0.5,0.25,0", "--std", "2")
    found = command("run", copying, *how, "-o", out)
    assert found.code == 0, found.err
    assert "0 to 1, less --mean 0.5,0.25,0, by --std 2" in found.err
    y = np.load(out)["y"][0]
    np.testing.assert_allclose(y[:, 0, 0], [0.25, -0.125, 0])
    np.testing.assert_allclose(y[:, 3, 3], [-0.25, -0.125, 0.5])


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["--mean", "0.5"], 2, "--mean: it is for pictures, but none is given"),
        (["--input", "P", "--mean", "1,2"], 2, "2 numbers for 3 channels"),
        (["--input", "P", "--std", "1,0,1"], 2, "nothing is divided by 0"),
        (["--input", "P", "--std", "1,x"], 2, "'1,x': expected numbers"),
        (["--input", "x=none.jpg"], 1, "none.jpg"),
    ],
)
def test_options_that_make_no_sense(command, copying, picture, args, code, said):
    found = command("run", copying, *(f"x={picture}" if a == "P" else a for a in args))
    assert found.code == code and said in " ".join(found.err.split()), found.err
