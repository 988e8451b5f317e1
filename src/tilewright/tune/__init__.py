"""Learned search: spaces, features, cost models, measurement, records, strategies, a fleet.

`base` defines the interfaces between these parts, which depend on nothing else of each other, so
each part can be replaced. The compiler above (which builds candidates) is passed in.
"""
