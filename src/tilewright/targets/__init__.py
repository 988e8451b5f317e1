"""Targets: one folder per machine, reached through the registry; `llvm` and `simt` are shared."""
