"""Graph rewrites as rows: a pattern, a replacement and a condition."""
