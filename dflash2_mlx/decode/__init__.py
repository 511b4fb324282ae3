"""The decode loop: token ids in, token ids out; it knows no text."""
