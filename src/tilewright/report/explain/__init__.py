"""Why a model runs as it does: one page from what its compilation and a profile recorded."""
