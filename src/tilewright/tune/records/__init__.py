"""Records of tuning: what was measured, on which machine, and what `compile` uses of it.

`key` says what a record belongs to, `rows` what one is, `database` keeps them, `jsonl` carries them
elsewhere, and `published` is the little that `compile` reads.
"""
