"""Measure speed: plain against speculative decoding, by kind of content and by context depth; tune the block size."""
