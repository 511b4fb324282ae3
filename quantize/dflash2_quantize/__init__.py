"""Quantise a drafter on disk, and measure what that costs in acceptance. It needs no web."""
