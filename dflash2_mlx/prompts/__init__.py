"""Prompts of our own by kind of content, and the five sets that others measure with."""

from dflash2_mlx.prompts.filler import long_context
from dflash2_mlx.prompts.jsonl import from_jsonl
from dflash2_mlx.prompts.model import KINDS, Prompt, digest
from dflash2_mlx.prompts.own import own
from dflash2_mlx.prompts.sets import SETS, from_set

__all__ = ["KINDS", "SETS", "Prompt", "digest", "from_jsonl", "from_set", "long_context", "own"]
