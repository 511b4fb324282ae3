"""All that is told before weights are read: the checked run, and whether it fits into memory and disk."""
