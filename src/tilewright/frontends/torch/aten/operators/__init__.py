"""The rules, one file per family; each registers itself when it is imported."""
