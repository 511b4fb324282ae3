"""What every test module starts from: the exact BLAS, no Hub, fixed seeds."""

import os
import random
import tempfile

import numpy as np
import pytest

# Before any test module imports mlx. With the BLAS that mlx bundles, a block of rows and the same rows one by
# one agree bit for bit in float32.
os.environ["DFLASH2_BLAS"] = "bundled"
# No test may download: a code path that tries fails at once instead of waiting for a network.
os.environ["HF_HUB_OFFLINE"] = "1"
# What tests measure of pairs is none of the user's.
_measured = tempfile.TemporaryDirectory(prefix="dflash2-measured-")
os.environ["DFLASH2_MEASURED"] = _measured.name


@pytest.fixture(autouse=True)
def seeds() -> None:
    """The same random numbers for a test, whether it runs alone or in the suite."""
    import mlx.core as mx

    random.seed(0)
    np.random.seed(0)
    mx.random.seed(0)
