"""The target: any mlx-lm model, tapped and rolled back by instance."""
