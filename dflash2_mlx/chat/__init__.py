"""The terminal: one prompt (`generate`), a conversation (`chat`), and what is installed (`doctor`).

Nothing here is imported by the library; the modules that parse arguments import no mlx.
"""
