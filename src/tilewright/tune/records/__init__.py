"""Records of tuning: what was measured, on which machine, and what `compile` uses of it.

`key` defines the identity of records, `rows` their contents; `database` stores them, `jsonl`
exports and imports them, and `published` holds the part that `compile` reads.
"""
