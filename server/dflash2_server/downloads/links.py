"""From what a person pastes to a repository id."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from dflash2_mlx.errors import RequestError

# Hosts whose paths read /owner/name, besides the endpoint that is set.
_HOSTS = frozenset({"huggingface.co", "www.huggingface.co", "hf.co", "hf-mirror.com"})
_OTHER_KINDS = frozenset({"datasets", "spaces", "buckets", "collections", "papers", "docs", "api"})
_REVISIONS = ("tree", "blob", "resolve", "raw", "commits")


def repository(text: str, endpoint: str | None = None) -> str:
    """The `owner/name` in an id or in a link to huggingface.co, hf.co, a known mirror or the endpoint that is set.

    Raises RequestError for anything else, for data sets and spaces, and for links to another revision than main.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    given = text.strip()
    path = _path(given, endpoint)
    parts = [unquote(part) for part in path.strip("/").split("/")]
    if parts[0] in _OTHER_KINDS:
        raise _refused(text, f"{parts[0]!r} is no model repository")
    if len(parts) > 3 and parts[2] in _REVISIONS and parts[3] != "main":
        raise _refused(text, f"it names the revision {parts[3]!r}, and only main is downloaded")
    repo_id = "/".join(parts[:2])
    if len(parts) < 2 or (path is given and (len(parts) > 2 or given.startswith("/"))):
        raise _refused(text, "that is no repository id")
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise _refused(text, str(error).rstrip(".")) from None
    return repo_id


def _path(given: str, endpoint: str | None) -> str:
    """What follows the host; `given` itself where it has none."""
    schemed = given if "://" in given else f"https://{given}"
    try:
        link = urlsplit(schemed)
        host, scheme, path = (link.hostname or "").lower(), link.scheme.lower(), link.path
        ours = _host(endpoint)
    except ValueError as error:  # such as an unclosed bracket of an IPv6 host
        raise _refused(given, f"it cannot be read as a link ({error})") from None
    if host in _HOSTS or (host and host == ours):
        if scheme not in ("http", "https"):
            raise _refused(given, f"links begin with https, not {scheme}")
        return path
    if "://" in given:
        raise _refused(given, f"{host or 'its host'} is not the Hub")
    return given


def _host(endpoint: str | None) -> str | None:
    from huggingface_hub import constants

    return urlsplit(endpoint or constants.ENDPOINT).hostname


def _refused(text: str, reason: str) -> RequestError:
    return RequestError(
        f"repo_id is {text!r}: {reason}; give owner/name, or a link such as https://huggingface.co/owner/name",
        param="repo_id",
    )
