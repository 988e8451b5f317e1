"""What documentation and examples register is forgotten behind them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tilewright.graph.ops import registry
from tilewright.runtime import devices
from tilewright.schedule.registry import PRIMITIVES
from tilewright.targets import registry as targets


@pytest.fixture
def own_registries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Operators, targets, devices and primitives registered in the test; all others stay."""
    registry.registered()
    monkeypatch.setattr(registry, "_definitions", dict(registry._definitions))
    monkeypatch.setattr(targets, "_ROWS", dict(targets._ROWS))
    monkeypatch.setattr(devices, "_makers", dict(devices._makers))
    primitives = dict(PRIMITIVES)
    devices.find.cache_clear()
    yield
    PRIMITIVES.clear()
    PRIMITIVES.update(primitives)
