"""`make fuzz`: generators of random programs, run in turn for a given time.

    python -m tilewright.testing.fuzz --generators schedules,graphs --seconds 600 --jobs 2

A generator is a function of a seed. Seeds are used once: a committed file says which are next, and
counts the programs and the faults. What fails is reduced and written as a test that fails.
"""
