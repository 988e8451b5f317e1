"""Pages and pictures of what was recorded."""
