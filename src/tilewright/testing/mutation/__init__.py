"""Faults seeded into our own sources, to see whether the tests of their room catch them."""
