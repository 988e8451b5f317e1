"""Tuning records: the measurements of each machine, and the schedules that `compile` uses.

`key` defines the identity of records, `rows` their contents; `database` stores them, `jsonl`
exports and imports them, and `published` holds the part that `compile` reads.
"""
