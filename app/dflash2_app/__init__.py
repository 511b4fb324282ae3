"""The model manager: its pages and its window."""
