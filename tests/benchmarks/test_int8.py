"""The benchmark of 8 bits: its inputs, and one small network through all of it."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks import int8


def test_structured_images_are_seeded_and_have_structure():
    shape = (1, 3, 32, 32)
    a = int8.structured(shape, 0)
    assert a.shape == shape and a.dtype == np.float32
    assert abs(a.mean()) < 1e-5 and abs(a.std() - 1) < 1e-5
    assert (a == int8.structured(shape, 0)).all()
    assert (a != int8.structured(shape, 1)).any()
    # Neighbors are alike, as in no image of noise.
    near = np.corrcoef(a[..., 1:].reshape(-1), a[..., :-1].reshape(-1))[0, 1]
    assert near > 0.7


@pytest.mark.slow
def test_a_network_through_all_engines():
    found = CliRunner().invoke(
        int8.main, ["lenet", "--rounds", "1", "--inputs", "2", "--json"]
    )
    assert found.exit_code == 0, found.output
    rows = [json.loads(x) for x in found.stdout.splitlines() if x.startswith("{")]
    names = [r["engine"] for r in rows]
    assert names[:3] == ["tilewright float32", "onnxruntime float32", "tilewright int8"]
    assert all(r["cosine"] > 0.98 and r["milliseconds"] > 0 for r in rows)
