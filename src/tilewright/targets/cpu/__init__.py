"""The CPU: described, scheduled, and compiled through LLVM."""
