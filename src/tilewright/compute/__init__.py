"""Computation: the one form in which arithmetic enters the compiler."""
