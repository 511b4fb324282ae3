"""Our own prompts for training: templates with slots, by kind of content; the text is in the JSON files beside this."""
