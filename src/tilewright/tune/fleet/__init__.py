"""Measuring on the machines of a fleet, by the engine of Dask.

A scheduler (`server`) knows workers, which offer devices (`device`) and measure on them (`bench`).
`runner.FleetRunner` sends compiled programs and takes measurements back. What is beyond this
machine is encrypted, and only who has the fleet's keys takes part (`keys`, `engine`). Nothing is
imported here.
"""
