"""Lift: typed data-parallel patterns over arrays, their rewrite rules, two ways down."""
