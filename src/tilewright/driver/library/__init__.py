"""Models as libraries for C programs, which need neither Python nor anything else to run."""

from tilewright.driver.library.build import Library, compile_library

__all__ = ["Library", "compile_library"]
