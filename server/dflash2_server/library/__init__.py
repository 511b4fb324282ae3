"""Models and drafters on disk."""
