"""Shared parts of GPU targets: the machine as schedules see it, schedules, checks."""
