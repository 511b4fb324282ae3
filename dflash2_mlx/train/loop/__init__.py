"""Step after step: the trainer, its learning rate, its state on disk, and replayed acceptance on the way."""
