"""The foundation of all packages: errors, dtypes, flags, events, text layout, the on-disk store."""
