"""Models in: one folder per source format."""
