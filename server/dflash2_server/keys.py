"""API keys: read from a request's headers, compared in constant time."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence

from pydantic import SecretStr


def encoded(keys: Iterable[SecretStr]) -> list[bytes]:
    """Keys as they stand in a header."""
    return [key.get_secret_value().encode("ascii") for key in keys]


def given_keys(headers: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    """What a request offers: `Authorization: Bearer KEY` (the scheme in any case) and `x-api-key: KEY`."""
    found = []
    for name, value in headers:
        if name == b"x-api-key":
            found.append(value.strip())
        elif name == b"authorization":
            scheme, _, rest = value.strip().partition(b" ")
            if scheme.lower() == b"bearer":
                found.append(rest.strip())
    return found


def is_known(given: Sequence[bytes], keys: Sequence[bytes]) -> bool:
    """Whether one of the given keys is one of ours. Every pair is compared, so that the time tells nothing."""
    matches = [hmac.compare_digest(offer, key) for offer in given for key in keys]
    return any(matches)
