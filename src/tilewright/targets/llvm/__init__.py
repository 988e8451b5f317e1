"""What targets share whose code LLVM generates: text of one function, and machine code of it."""
