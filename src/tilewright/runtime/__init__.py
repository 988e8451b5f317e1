"""All that a deployed model needs and nothing more: buffers, bundles, the executor, the thread pool."""
