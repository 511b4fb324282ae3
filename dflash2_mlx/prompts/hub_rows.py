"""Rows of a data set on the Hub through its rows API, which needs no library for the files; kept on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from dflash2_mlx.demo.store import cache_folder
from dflash2_mlx.errors import DFlashError
from dflash2_mlx.report.whole import write_whole

URL = "https://datasets-server.huggingface.co/rows"
_SPLITS = "https://datasets-server.huggingface.co/splits"
_PAGE = 100  # the most rows that one answer may hold
_TIMEOUT = 30.0


class HubRows(NamedTuple):
    """Which rows: repository, its configuration, split."""

    repository: str
    config: str
    split: str


def named_rows(name: str) -> HubRows:
    """Rows by a text: `owner/name`, `owner/name:config` or `owner/name:config:split`; what it leaves out is looked up.

    The split is `train` where there is one, else the first. Raises DFlashError.
    """
    repository, _, rest = name.partition(":")
    config, _, split = rest.partition(":")
    if config and split:
        return HubRows(repository, config, split)
    answer = _get(_SPLITS, {"dataset": repository}, repository)
    try:
        found = [HubRows(repository, str(entry["config"]), str(entry["split"])) for entry in answer["splits"]]
    except (KeyError, TypeError):
        raise DFlashError(f"the Hub's answer about the splits of {repository} has another form now") from None
    fitting = [rows for rows in found if config in ("", rows.config)]
    if not fitting:
        there = ", ".join(sorted({rows.config for rows in found})) or "none"
        raise DFlashError(f"{repository} has no configuration {config!r}: there are {there}")
    return next((rows for rows in fitting if rows.split == "train"), fitting[0])


def fetch_rows(name: str, wanted: HubRows, limit: int | None) -> list[dict[str, Any]]:
    """The first `limit` rows (None: all), from the copy on disk as far as it goes; `name` names the copy.

    Raises DFlashError where the Hub cannot be reached or answers something else.
    """
    copy = _copy_path(name)
    rows, total = _read_copy(copy, wanted)
    known = len(rows)
    while (limit is None or len(rows) < limit) and (total is None or len(rows) < total):
        page, total = _page(wanted, len(rows))
        if not page:
            break
        rows += page
    if len(rows) > known:
        _write_copy(copy, wanted, rows, total)
    return rows[:limit]


def _copy_path(name: str) -> Path:
    return cache_folder() / "prompts" / f"{name}.json"


def _read_copy(path: Path, wanted: HubRows) -> tuple[list[dict[str, Any]], int | None]:
    """The rows that were kept and the number that there are in all; a copy of something else is none."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["of"] == list(wanted) and all(isinstance(row, dict) for row in kept["rows"]):
            return kept["rows"], int(kept["total"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return [], None


def _write_copy(path: Path, wanted: HubRows, rows: list[dict[str, Any]], total: int | None) -> None:
    """A copy that cannot be kept is no loss: the rows are asked for again."""
    try:
        write_whole(path, json.dumps({"of": list(wanted), "total": total, "rows": rows}, ensure_ascii=False))
    except DFlashError:
        return


def _page(wanted: HubRows, offset: int) -> tuple[list[dict[str, Any]], int]:
    """The rows from `offset` on, and how many there are in all."""
    asked = {
        "dataset": wanted.repository,
        "config": wanted.config,
        "split": wanted.split,
        "offset": offset,
        "length": _PAGE,
    }
    answer = _get(URL, asked, wanted.repository)
    try:
        entries = answer["rows"]
        cut = [entry["row_idx"] for entry in entries if entry.get("truncated_cells")]
        rows, total = [dict(entry["row"]) for entry in entries], int(answer["num_rows_total"])
    except (KeyError, TypeError, ValueError):
        raise DFlashError(f"the Hub's answer about the rows of {wanted.repository} has another form now") from None
    if cut:
        raise DFlashError(f"the Hub cut the rows {cut} of {wanted.repository}")
    return rows, total


def _get(url: str, params: dict[str, Any], repository: str) -> Any:
    """The JSON of an answer. Raises DFlashError."""
    import httpx
    from huggingface_hub import get_session

    try:
        response = get_session().get(url, params=params, timeout=_TIMEOUT)
        response.raise_for_status()
        return response.json()
    except httpx.HTTPStatusError as error:
        cause = f"status {error.response.status_code}"
    except (httpx.HTTPError, OSError) as error:  # OSError: also the Hub library's offline mode
        cause = str(error) or type(error).__name__
    except ValueError:
        cause = "no JSON"
    raise DFlashError(f"the rows of {repository} could not be fetched from {url} ({cause})")
