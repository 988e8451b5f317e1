"""The faces users import: a notation with schedule verbs, `lower` and `build`."""
