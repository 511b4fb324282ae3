"""What training starts from: the drafter's config for a target, and its first weights."""
