"""The whole order, from a model to something that runs; `compile` reads top to bottom."""

from tilewright.driver.compile import compile, schedules, text

__all__ = ["compile", "schedules", "text"]
