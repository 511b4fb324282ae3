"""Quantise jobs of the model manager: `dflash2-mlx quantize` in a process of its own."""
