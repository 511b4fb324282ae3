"""Prompts of our own by kind of content, and the five sets that others measure with."""
