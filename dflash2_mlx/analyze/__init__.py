"""The figures of the method, for any pair: recall, acceptance, oracle, ablations, attention."""
