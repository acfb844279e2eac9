"""How every upstream is reached: its URL, its session, the headers of a request, and who is blamed. No requests here.

Rule: a key travels in the Authorization header and nowhere else; what a failure tells never holds it.
"""

from __future__ import annotations

from typing import Protocol
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from pydantic import SecretStr

from cg_rag.core.log import request_id_var
from cg_rag.core.setting_types import is_endpoint
from cg_rag.core.upstream_errors import UpstreamError


class Reachable(Protocol):
    """The settings of an upstream, as far as all kinds of them have the same."""

    @property
    def endpoint(self) -> str: ...
    @property
    def api_key(self) -> SecretStr: ...
    @property
    def proxy_from_environment(self) -> bool: ...


def check_reachable(settings: Reachable) -> None:
    """Raises ValueError for an endpoint that is none and for a key that no header can carry; neither is quoted."""
    if not is_endpoint(settings.endpoint):
        raise ValueError("endpoint is no http(s) URL without user, query and fragment")
    key = settings.api_key.get_secret_value()
    if not (key.isascii() and key.isprintable()):
        raise ValueError("api_key is not printable ASCII")


def url_of(endpoint: str, path: str) -> str:
    """`endpoint` with `path` behind it, or as it is when it ends in `path` already."""
    base = endpoint.rstrip("/")
    return base if base.endswith(path) else base + path


def open_session(settings: Reachable) -> aiohttp.ClientSession:
    """The session of one upstream, to be closed by whoever opened it. Certificates are verified; a proxy is
    taken from the environment only with `proxy_from_environment`."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),  # core/capacity.py bounds how much goes on at once
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        # Not aiohttp's trust_env, which reads keys for the host from ~/.netrc as well.
        proxy=_proxy_for(settings.endpoint) if settings.proxy_from_environment else None,
        headers={"User-Agent": "cg-rag"},
    )


def headers_for(settings: Reachable, accept: str) -> dict[str, str]:
    """The headers of one request: what it accepts, the key if there is one, the id of the request it is made for."""
    headers = {"Accept": accept}
    key = settings.api_key.get_secret_value()
    if key:
        headers["Authorization"] = f"Bearer {key}"
    request_id = request_id_var.get()
    if request_id:
        headers["X-Request-ID"] = request_id
    return headers


def blamed(failure: UpstreamError, settings: Reachable, attempts: int) -> UpstreamError:
    """`failure` with the number of requests sent, and without what may quote the key."""
    failure.attempts = attempts
    # A server may call its failure by the key that it was sent.
    if failure.code and failure.code in settings.api_key.get_secret_value():
        failure.code = ""
    # A traceback shows the cause, and aiohttp's quote the host and the bytes that it could not read.
    failure.__cause__ = failure.__context__ = None
    return failure


def _proxy_for(endpoint: str) -> str | None:
    url = urlsplit(endpoint)
    proxy = getproxies().get(url.scheme)
    is_http = proxy is not None and proxy.startswith(("http://", "https://"))
    return proxy if is_http and not proxy_bypass(url.hostname or "") else None
