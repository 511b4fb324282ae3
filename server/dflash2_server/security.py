"""Who may ask: host names, origins and keys. Pure ASGI, so that streams pass through untouched."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Mapping
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from dflash2_mlx.errors import RequestError
from dflash2_mlx.settings import ServerSettings
from dflash2_server.errors import error_response, refusal
from dflash2_server.keys import encoded, given_keys, is_known
from dflash2_server.sessions import Sessions, cookie_name, cookie_values

# Answered without a key: that the process lives, and the way to log in.
OPEN_PATHS = frozenset({"/health", "/login", "/admin/api/login"})
# Programs ask here: errors are JSON, never a page. Below the first ones a session is not enough.
KEY_PATHS = ("/v1",)
# What `--cors-origin` opens to web pages of other origins: neither the admin API nor the pages.
LISTED_PATHS = (*KEY_PATHS, "/health", "/ready", "/metrics", "/openapi.json")
API_PATHS = (*LISTED_PATHS, "/admin")
WEBSOCKET_REFUSED = 1008  # policy violation
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
        refused = self.refuse(scope) if scope["type"] in ("http", "websocket") else None
        if refused is None:
            await self.app(scope, receive, send)
            return
        status, message, headers = refused
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": WEBSOCKET_REFUSED, "reason": message})
        elif status in (302, 303):
            await Response(status_code=status, headers=dict(headers))(scope, receive, send)
        else:
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
    """Against requests and websockets from web pages of other sites. Programs that are no browsers send no Origin."""

    def refuse(self, scope: Scope) -> tuple[int, str, Mapping[str, str]] | None:
        headers = Headers(scope=scope)
        listed = is_under(scope["path"], *LISTED_PATHS)
        reads = scope.get("method") in ("GET", "HEAD")
        if listed and reads:
            return None  # without CORS headers a page cannot read the answer
        for origin in headers.getlist("origin"):
            if not is_origin_allowed(origin, headers.get("host", ""), self.settings.cors_origin if listed else ()):
                remedy = "--cors-origin allows one" if listed else "only this server's own pages may"
                return 403, f"origin {origin!r:.200} may send no requests: {remedy}", {}
        site = headers.get("sec-fetch-site")
        if not reads and "origin" not in headers and site in ("cross-site", "same-site"):
            return 403, f"a page of another site may change nothing here (Sec-Fetch-Site is {site})", {}
        return None


class KeyGuard(_Guard):
    """Where keys are configured, everything but `/health` and the login needs one, or a session for what pages use.

    A query string is not looked at. A page that needs a login leads there.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings, sessions: Sessions, *, pages: bool) -> None:
        super().__init__(app, settings)
        self.keys = encoded(settings.api_key)
        self.sessions, self.pages = sessions, pages

    def refuse(self, scope: Scope) -> tuple[int, str, Mapping[str, str]] | None:
        path = scope["path"]
        if not self.keys or path in OPEN_PATHS:
            return None
        given = given_keys(scope["headers"])
        if is_known(given, self.keys) or (not is_under(path, *KEY_PATHS) and self._has_session(scope)):
            return None
        if self.pages and scope.get("method") == "GET" and not is_under(path, *API_PATHS):
            return 303, "", {"Location": login_location(scope)}
        what = "the API key is wrong" if given else "an API key is needed"
        message = f"{what}: send Authorization: Bearer KEY, or x-api-key: KEY"
        return 401, message, {"WWW-Authenticate": "Bearer"}

    def _has_session(self, scope: Scope) -> bool:
        server = scope.get("server")
        name = cookie_name(int(server[1]) if server and server[1] else 0)
        return any(self.sessions.is_open(token) for token in cookie_values(scope["headers"], name))


def login_location(scope: Scope) -> str:
    """The login page, and from there back to the path that was asked for."""
    path, query = scope["path"], scope.get("query_string", b"").decode("latin-1")
    wanted = f"{path}?{query}" if query else path
    return "/login" if path == "/" else f"/login?next={quote(wanted, safe='/')}"


def is_under(path: str, *prefixes: str) -> bool:
    """Whether a path is one of these or lies below one."""
    return any(path == prefix or path.startswith(f"{prefix}/") for prefix in prefixes)
