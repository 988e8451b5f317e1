"""Shared parts of targets that use LLVM: emits a function's text, and compiles it to machine
code."""
