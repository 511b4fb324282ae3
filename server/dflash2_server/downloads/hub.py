"""Questions to the Hub: a repository's files, one small file. Everything raises what huggingface_hub raises."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from huggingface_hub import HfApi, get_hf_file_metadata, get_token, hf_hub_url
from huggingface_hub.utils import build_hf_headers, filter_repo_objects  # type: ignore[attr-defined]

from dflash2_mlx.hub import FILES

from .faults import failure

if TYPE_CHECKING:
    from hashlib import _Hash

TIMEOUT = 10.0  # seconds, for an answer other than a file's content
_PUBLIC = "https://huggingface.co"


@dataclass(frozen=True, kw_only=True)
class RemoteFile:
    """A file as the Hub announces it. `checksum` is its ETag: sha256 of a large file, git's sha1 of a small one."""

    path: str
    size: int
    checksum: str

    def digest(self) -> _Hash | None:
        """A hash to be fed with the content; None where the ETag is neither of the two."""
        if len(self.checksum) == 64:
            return hashlib.sha256()
        if len(self.checksum) == 40:
            return hashlib.sha1(f"blob {self.size}\0".encode(), usedforsecurity=False)
        return None


@dataclass(frozen=True, kw_only=True)
class Repository:
    """A commit of a repository: the files that the runtime reads, the small ones first."""

    id: str
    commit: str
    files: tuple[RemoteFile, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


@dataclass(frozen=True, kw_only=True)
class Access:
    """How the Hub is asked. `token` False: without, even where one is stored; None: with the stored one."""

    endpoint: str | None = None
    token: str | Literal[False] | None = None

    @property
    def sends_token(self) -> bool:
        return bool(self.token or (self.token is None and get_token()))

    def headers(self) -> dict[str, str]:
        return dict(build_hf_headers(token=self.token))

    def url(self, repo_id: str, path: str, commit: str = "main") -> str:
        return hf_hub_url(repo_id, path, revision=commit, endpoint=self.endpoint)

    def page(self, repo_id: str) -> str:
        return f"{self.endpoint or os.environ.get('HF_ENDPOINT') or _PUBLIC}/{repo_id}"


def repository(access: Access, repo_id: str) -> Repository:
    """The files of main. Raises Failure where they are no model that the runtime reads."""
    info = HfApi(endpoint=access.endpoint, token=access.token).model_info(repo_id, files_metadata=True, timeout=TIMEOUT)
    if info.sha is None:
        raise failure("other", f"{repo_id}: the endpoint names no commit", "check the endpoint in Settings")
    siblings = {sibling.rfilename: sibling for sibling in info.siblings or ()}
    names = [name for name in filter_repo_objects(siblings, allow_patterns=FILES) if _is_relative(name)]
    _check_is_model(repo_id, names, siblings)
    files = [_file(access, repo_id, info.sha, siblings[name]) for name in names]
    files.sort(key=lambda file: (file.path != "config.json", file.size, file.path))
    return Repository(id=repo_id, commit=info.sha, files=tuple(files))


def _file(access: Access, repo_id: str, commit: str, sibling: Any) -> RemoteFile:
    size, checksum = sibling.size, sibling.lfs.sha256 if sibling.lfs else sibling.blob_id
    if size is None or not checksum:  # some mirrors leave them out of the list
        url = access.url(repo_id, sibling.rfilename, commit)
        metadata = get_hf_file_metadata(url, token=access.token, timeout=TIMEOUT, endpoint=access.endpoint)
        size, checksum = metadata.size, metadata.etag
    if size is None or not checksum or not checksum.isalnum():
        raise failure("other", f"{sibling.rfilename}: the endpoint tells no size or ETag", "use another endpoint")
    return RemoteFile(path=sibling.rfilename, size=size, checksum=checksum)


def _is_relative(name: str) -> bool:
    """Whether a file's name stays within its repository."""
    return "\\" not in name and all(part not in ("", ".", "..") for part in name.split("/"))


def _check_is_model(repo_id: str, names: list[str], all_names: dict[str, Any]) -> None:
    lacking = [
        what
        for what, there in [
            ("config.json", "config.json" in names),
            (".safetensors file", any(name.endswith(".safetensors") for name in names)),
        ]
        if not there
    ]
    if lacking:
        kinds = sorted({name.rsplit(".", 1)[-1] for name in all_names if name.endswith((".gguf", ".bin", ".pth"))})
        holds = f", but .{', .'.join(kinds)}" if kinds else ""
        raise failure(
            "other",
            f"{repo_id} has no {' and no '.join(lacking)}{holds}: it is no model that this program reads",
            "look for an MLX or safetensors version of it",
        )
