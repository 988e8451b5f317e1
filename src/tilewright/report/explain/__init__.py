"""Explains a model's performance: one page from records of its compilation and a profile."""
