"""The node core: typed, immutable, interned nodes; rewrite rules as data; passes and pipelines."""
