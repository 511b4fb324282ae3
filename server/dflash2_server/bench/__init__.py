"""Benches of the model manager: they run through the engine beside other requests, and their results are kept."""
