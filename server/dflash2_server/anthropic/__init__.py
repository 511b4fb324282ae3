"""Anthropic's Messages protocol: requests to `Inference`, events to content blocks."""
