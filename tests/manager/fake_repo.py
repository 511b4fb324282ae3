"""A repository of the fake hub: its files, and the faults that a test gives it."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

ALWAYS = 1_000_000


@dataclass
class Repo:
    """Files and faults of one repository; a test may change any of it while the hub runs.

    Faults of content (from `drop_at` on) are those of files of `large` bytes or more. Counts say how often.
    """

    id: str
    files: dict[str, bytes]
    tags: list[str] = field(default_factory=lambda: ["safetensors", "mlx"])
    pipeline_tag: str | None = "text-generation"
    downloads: int = 10
    hidden: bool = False  # 404, as if it were not there
    private: bool = False  # only with a token
    gated: bool = False  # listed, but no file is given, whatever the token
    without_blobs: bool = False  # the list of files has names alone, as some mirrors give it
    without_ranges: bool = False  # 200 with everything, whatever the range
    limited: int = 0  # answers of 429 …
    retry_after: str | None = "1"  # … with this header
    broken: int = 0  # answers of 503
    large: int = 4096
    drop_at: int | None = None  # the connection ends before this byte …
    drops: int = 0  # … so many times
    hold_at: int | None = None  # nothing more comes from this byte on, until `FakeHub.release` …
    holds: int = ALWAYS  # … for so many clients
    slow: int | None = None  # bytes a second
    short: int = 0  # answers that lack the last byte, and say so
    corrupt: int = 0  # answers with another first byte

    @property
    def commit(self) -> str:
        names = "".join(f"{path}{checksum(content)}" for path, content in sorted(self.files.items()))
        return hashlib.sha1(names.encode()).hexdigest()

    def sibling(self, path: str) -> dict[str, Any]:
        content = self.files[path]
        if self.without_blobs:
            return {"rfilename": path}
        entry: dict[str, Any] = {"rfilename": path, "size": len(content), "blobId": git_checksum(content)}
        if is_lfs(path):
            entry["lfs"] = {"size": len(content), "sha256": checksum(content), "pointerSize": 134}
        return entry

    def entry(self, path: str) -> dict[str, Any]:
        """As the tree has it."""
        content = self.files[path]
        tree: dict[str, Any] = {"type": "file", "path": path, "size": len(content), "oid": git_checksum(content)}
        if is_lfs(path):
            tree["lfs"] = {"size": len(content), "oid": checksum(content), "pointerSize": 134}
        return tree

    def info(self) -> dict[str, Any]:
        config: dict[str, Any] = {}
        with suppress(ValueError):
            config = dict(json.loads(self.files.get("config.json", b"{}")))
        return {
            "id": self.id,
            "modelId": self.id,
            "sha": self.commit,
            "private": self.private,
            "gated": "manual" if self.gated else False,
            "downloads": self.downloads,
            "likes": 3,
            "lastModified": "2026-10-12T08:00:00.000Z",
            "pipeline_tag": self.pipeline_tag,
            "tags": self.tags,
            "config": {key: config[key] for key in ("architectures", "model_type") if key in config},
            "safetensors": {"parameters": {"BF16": 100, "U32": 50}, "total": 150},
        }


def checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def git_checksum(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def is_lfs(path: str) -> bool:
    return path.endswith(".safetensors")
