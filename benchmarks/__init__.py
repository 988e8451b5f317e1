"""Benchmarks: networks with seeded weights, side-by-side timing, footprint, import time."""
