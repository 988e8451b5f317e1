"""Which machine schedules are for, by the device that is taken."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.targets.opencl.running import pocl
from tilewright.base.errors import ArtifactError
from tilewright.targets import registry
from tilewright.targets.opencl import platforms

GPU, CPU = 4, 2  # OpenCL's numbers of them


def device(platform: str, name: str, type: int) -> SimpleNamespace:
    return SimpleNamespace(
        platform=SimpleNamespace(name=platform), name=name, type=type
    )


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (device("Portable Computing Language", "pthread-znver4", CPU), "pocl"),
        (device("Intel(R) OpenCL", "Xeon", CPU), "pocl"),
        (device("ARM Platform", "Mali-G71 r0p0", GPU), "mali"),
        (device("NVIDIA CUDA", "H200", GPU), "generic"),
        (device("Oclgrind", "Oclgrind Simulator", CPU | GPU), "generic"),
    ],
    ids=lambda x: x if isinstance(x, str) else x.name,
)
def test_schedules_are_for_the_device_that_is_taken(monkeypatch, found, kind):
    pocl()
    monkeypatch.setattr(platforms, "chosen", lambda: found)
    assert registry.target("opencl").simt.name == kind


def test_without_a_device_they_are_for_any_gpu(monkeypatch):
    def none() -> None:
        raise ArtifactError("no OpenCL device is there")

    monkeypatch.setattr(platforms, "chosen", none)
    assert registry.target("opencl").simt.name == "generic"


def test_a_description_is_taken_as_it_is():
    made = registry.target("opencl", description={"like": "mali", "units": 3})
    assert (made.simt.name, made.simt.units) == ("mali", 3)
