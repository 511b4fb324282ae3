"""The target's hidden rows: computed, and kept on disk beside the data."""
