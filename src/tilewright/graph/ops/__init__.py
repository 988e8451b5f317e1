"""Operator definitions, one file per family; `registry` explains what a definition is."""
