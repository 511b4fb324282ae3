"""Who may ask: host names, origins and keys. Pure ASGI, so that streams pass through untouched."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Mapping

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from dflash2_mlx.errors import RequestError
from dflash2_mlx.settings import ServerSettings
from dflash2_server.errors import error_response, refusal
from dflash2_server.keys import encoded, given_keys, is_known

# Answered without a key: it says nothing but that the process lives.
OPEN_PATHS = frozenset({"/health"})
_AUTHORITY = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[^:\[\]@/\\\s]+))(?::\d{1,5})?")


def check_exposure(settings: ServerSettings) -> None:
    """Raises RequestError when others could reach the server and no key would stop them."""
    if not is_loopback(settings.host) and not settings.api_key:
        raise RequestError(
            f"host is {settings.host!r}, which others can reach, and there is no key: "
            "give one in DFLASH2_API_KEY or with --api-key, or listen on 127.0.0.1",
            param="host",
        )


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is this machine's own; a name other than localhost is not, wherever it leads."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_names(settings: ServerSettings) -> frozenset[str]:
    """The names that requests may use, besides IP addresses: a page of another site cannot get one of these."""
    return frozenset({"localhost", settings.host.lower(), *settings.allowed_host})


def is_host_allowed(host: str, names: Collection[str]) -> bool:
    """Whether a Host header is an IP literal or one of the names, with any port."""
    found = _AUTHORITY.fullmatch(host)
    if found is None:
        return False
    if found["v6"] is None and found["name"].lower().removesuffix(".") in names:
        return True
    try:
        ipaddress.IPv6Address(found["v6"]) if found["v6"] else ipaddress.IPv4Address(found["name"])
    except ValueError:
        return False
    return True


def is_origin_allowed(origin: str, host: str, listed: Collection[str]) -> bool:
    """Whether a page of that origin may send requests: it is listed, or the server's own."""
    origin = origin.lower()
    _, mark, authority = origin.partition("://")
    return origin in listed or "*" in listed or bool(mark and authority and authority == host.lower())


class _Guard:
    """A middleware that asks `refuse` for a response, and passes the request on when there is none."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self.app = app
        self.settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self.refuse(scope) if scope["type"] == "http" else None
        if refused is None:
            await self.app(scope, receive, send)
        else:
            status, message, headers = refused
            await error_response(scope, refusal(status, message), headers)(scope, receive, send)

    def refuse(self, scope: Scope) -> tuple[int, str, Mapping[str, str]] | None:
        """Status, message and headers of a refusal."""
        raise NotImplementedError


class HostGuard(_Guard):
    """Against DNS rebinding: a foreign page's host name must not lead to this server, whatever the path."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        super().__init__(app, settings)
        self.names = host_names(settings)

    def refuse(self, scope: Scope) -> tuple[int, str, Mapping[str, str]] | None:
        hosts = Headers(scope=scope).getlist("host")
        if len(hosts) != 1 or not hosts[0]:
            return 400, "the request names no host, or several: one Host header is needed", {}
        if is_host_allowed(hosts[0], self.names):
            return None
        message = f"host {hosts[0]!r:.200} is not served: use an IP address or localhost, or start with --allowed-host"
        return 421, message, {}


class OriginGuard(_Guard):
    """Against posts from web pages of other sites. Programs that are no browsers send no Origin."""

    def refuse(self, scope: Scope) -> tuple[int, str, Mapping[str, str]] | None:
        if scope["method"] in ("GET", "HEAD"):
            return None  # without CORS headers a page cannot read the answer
        headers = Headers(scope=scope)
        for origin in headers.getlist("origin"):
            if not is_origin_allowed(origin, headers.get("host", ""), self.settings.cors_origin):
                return 403, f"origin {origin!r:.200} may send no requests: --cors-origin allows one", {}
        return None


class KeyGuard(_Guard):
    """Where keys are configured, everything but `/health` needs one. A query string is not looked at."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        super().__init__(app, settings)
        self.keys = encoded(settings.api_key)

    def refuse(self, scope: Scope) -> tuple[int, str, Mapping[str, str]] | None:
        if not self.keys or scope["path"] in OPEN_PATHS:
            return None
        given = given_keys(scope["headers"])
        if is_known(given, self.keys):
            return None
        what = "the API key is wrong" if given else "an API key is needed"
        message = f"{what}: send Authorization: Bearer KEY, or x-api-key: KEY"
        return 401, message, {"WWW-Authenticate": "Bearer"}
