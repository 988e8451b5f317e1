"""Rewrites of plans: what runs as one kernel, in which form, and where its results are."""
