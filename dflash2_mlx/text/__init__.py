"""Text on both sides of the engine: messages to prompts, ids to text, and text to reasoning, content and calls."""
