"""Sketches: families of schedules with free parameters, for any sequence of Computations."""
