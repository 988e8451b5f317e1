"""Generators of random programs, golden files and differential checks for the tests."""
