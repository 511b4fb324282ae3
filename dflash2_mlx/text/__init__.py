"""From token ids to text: streamed decoding, stop strings, the public generators."""
