"""Operator definitions, one file per family; `registry` says what a definition is."""
