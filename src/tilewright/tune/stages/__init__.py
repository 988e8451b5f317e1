"""Where the stages of a program are computed: a beam search by an analytic price.

`program.py` has the stages as any notation gives them, `bodies.py` what they compute, `places.py`
the choices, `price.py` what these cost, and `beam.py` the search.
"""
