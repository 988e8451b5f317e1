"""Measuring programs in processes of their own, which may crash, hang, or be wrong.

`local.LocalRunner` starts a `worker` for each slot, which imports the runtime and no compiler, and
forks for each trial: `trial` checks the results against a `reference` and times by `racing`.
`builder` makes programs in other processes. Nothing is imported here: workers start quickly.
"""
