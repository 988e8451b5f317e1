"""Everything that a deployed model needs, and nothing more: bundles, loader, executor, threads."""
