"""Measuring programs in separate processes, because they may crash, hang, or be wrong.

`local.LocalRunner` starts a `worker` per slot, which imports the runtime but no compiler, and forks
for each trial: `trial` checks the results against a `reference` and times them by `racing`.
`builder` builds programs in other processes. Nothing is imported here, so that workers start
quickly.
"""
