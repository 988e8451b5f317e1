"""The benchmark of ranges of shapes: its options."""

import sys

import pytest

from benchmarks import shape_range


def test_models_that_there_are_not_are_refused_before_any_is_timed(monkeypatch, capsys):
    monkeypatch.setattr(shape_range, "ratios", lambda *_: pytest.fail("it was timed"))
    monkeypatch.setattr(sys, "argv", ["shape_range", "--models", "mlp,nope"])
    with pytest.raises(SystemExit) as caught:
        shape_range.main()
    assert caught.value.code == 2
    assert "no models nope; there are encoder, bert" in capsys.readouterr().err
