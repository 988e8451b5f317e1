"""The driver: all steps from a model to an Executable; `compile` reads top to bottom."""

from tilewright.driver.compile import compile, schedules, text

__all__ = ["compile", "schedules", "text"]
