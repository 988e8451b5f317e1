"""Importers of models: one folder per source format."""
