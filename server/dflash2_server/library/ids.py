"""What each model is called: by its leaf folder, and otherwise where two are called the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from .models import DEMO, DEMO_DRAFTER
from .places import Place


def assign(places: Iterable[Place], before: Mapping[Path, str]) -> dict[Path, str]:
    """An id for each place. One that has an id keeps it; of those that come anew the first gets the plain name."""
    listed = list(places)
    given = {place.folder: before[place.folder] for place in listed if place.folder in before}
    taken = {DEMO, DEMO_DRAFTER, *given.values()}
    for place in listed:
        if place.folder not in given:
            given[place.folder] = next(name for name in _candidates(place) if name not in taken)
            taken.add(given[place.folder])
    return given


def _candidates(place: Place) -> Iterator[str]:
    yield place.name
    if place.repo_id and "/" in place.repo_id:
        yield place.repo_id.replace("/", "--")
    number = 2
    while True:
        yield f"{place.name}-{number}"
        number += 1
