"""Models as libraries for C programs. They need neither Python nor other libraries."""

from tilewright.driver.library.build import Library, compile_library

__all__ = ["Library", "compile_library"]
