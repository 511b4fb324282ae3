"""The chi-square test that sampled tokens are held against, and the size of deviation that counts."""

from __future__ import annotations

import numpy as np

# In standard deviations. By chance, 4 is passed once in 30,000 tests, and draws are seeded: never again.
FITS = 4.0
BIASED = 8.0


def deviation(observed: np.ndarray, law: np.ndarray) -> float:
    """How far counts (n,) lie from probabilities (n,), in standard deviations; infinite for what cannot be.

    Cells that expect fewer than 10 draws are joined. The cube root of chi-square by its degrees of freedom is
    normal (Wilson and Hilferty).
    """
    law = law / law.sum()
    if observed[law == 0].any():
        return float("inf")
    expected = law * observed.sum()
    large = expected >= 10
    counts, means = observed[large].astype(float), expected[large]
    if (rest := expected[~large].sum()) >= 10:
        counts, means = np.append(counts, observed[~large].sum()), np.append(means, rest)
    freedom = len(means) - 1
    if freedom < 1:
        return 0.0
    chi_square = float(((counts - means) ** 2 / means).sum())
    spread = 2 / (9 * freedom)
    return float(((chi_square / freedom) ** (1 / 3) - (1 - spread)) / spread**0.5)
