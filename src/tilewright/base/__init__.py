"""What all rooms stand on: errors, dtypes, flags, events, text layout, the on-disk store."""
