"""The engine: one thread that owns MLX, requests that take turns on it, and the cache of prompt prefixes."""
