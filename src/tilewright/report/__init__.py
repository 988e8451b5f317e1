"""HTML pages and figures of recorded results."""
