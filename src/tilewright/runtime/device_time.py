"""How long the kernels of a model take on its devices, by the clocks of these."""

from __future__ import annotations

from tilewright.runtime.call import CallValues, PreparedStep
from tilewright.runtime.device_steps import LaunchRun


class LaunchWatch:
    """Runs the steps of a call, each to its end. seconds: that launches have taken so far."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, step: PreparedStep, values: CallValues) -> None:
        event = step.run(values)
        if event is None:
            return
        event.wait()
        if isinstance(step, LaunchRun):
            self.seconds += event.duration().seconds
