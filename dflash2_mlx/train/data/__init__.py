"""Data to train on: prompts, the target's own answers to them, and the token shards that hold both."""
