"""`make fuzz`: runs generators of random programs alternately for a given time.

    python -m tilewright.testing.fuzz --generators schedules,graphs --seconds 600 --jobs 2

A generator is a function of a seed. Each seed is used once: a committed file records the next ones
and counts programs and faults. A failing program is reduced and written as a failing test.
"""
