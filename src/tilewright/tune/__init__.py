"""Search that learns: spaces, features, cost models, measurement, records, strategies, a fleet.

`base` says what these are to one another, and nothing else: a part may be replaced without the
others noticing. What is asked of the compiler above (the code of a candidate) is handed in.
"""
