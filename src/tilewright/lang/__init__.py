"""The user interfaces of the notations: schedule methods, `lower` and `build`."""
