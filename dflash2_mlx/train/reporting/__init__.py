"""What a run tells of itself: its history and figures, in the terminal, as a report and as a model card."""
