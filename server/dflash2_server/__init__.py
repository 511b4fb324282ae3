"""The local server: OpenAI's and Anthropic's protocols on the speculative engine of `dflash2_mlx`."""
