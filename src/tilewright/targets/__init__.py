"""Targets: one folder per machine, reached through the registry."""
