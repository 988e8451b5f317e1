"""Measuring on the machines of a fleet, on top of Dask.

A scheduler (`server`) manages workers, which offer devices (`device`) and measure on them
(`bench`). `runner.FleetRunner` sends compiled programs and receives measurements. Traffic beyond
this machine is encrypted, and only holders of the fleet's keys take part (`keys`, `engine`).
Nothing is imported here.
"""
