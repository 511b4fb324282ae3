"""The drafter: its config, its modules, its context of committed positions, its weights."""
