"""Serves one page on this machine, to any number of viewers.

Web sites that a viewer has open must not read it: requests that name another host (DNS rebinding), or that come from
another origin, are refused. There is the page and its data, and nothing else: no files, no methods but GET.
"""

import errno
import sys
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

from ...core.errors import InputError

HOST = "127.0.0.1"
DATA = "data"  # the address of the page's data
_SILENCE = 30  # seconds after which an idle connection is closed
_HTML = "text/html; charset=utf-8"
_JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True)
class PageVersion:
    """The page at one moment."""

    key: str  # other than that of any other edition
    html: Callable[[], str]
    data: str


class PageServer(ThreadingHTTPServer):
    """Serves the newest edition. `port` 0 takes any that is free."""

    daemon_threads = True
    request_queue_size = 64  # viewers that may knock at once

    def __init__(self, newest: Callable[[], PageVersion], port: int) -> None:
        self.newest = newest
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise _refused(port, error) from None

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.port}/"

    @property
    def hosts(self) -> set[str]:
        """The names by which this server may be called."""
        names = {f"{name}:{self.port}" for name in (HOST, "localhost")}
        if self.port == 80:
            names |= {HOST, "localhost"}
        return names

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A viewer that went away is no error; any other is shown in a line, and the server continues."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            sys.stderr.write(f"evenfed: a request failed ({type(error).__name__}: {error})\n")


def _refused(port: int, error: OSError) -> InputError:
    another = "give another with --port, or --port 0 for any that is free"
    if error.errno == errno.EADDRINUSE:
        return InputError(f"port {port} is in use, perhaps by another `evenfed watch`; {another}")
    if error.errno == errno.EACCES:
        return InputError(f"port {port} is for the system alone; {another}")
    return InputError(f"port {port} cannot be used ({error.strerror}); {another}")


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    protocol_version = "HTTP/1.1"
    server_version = "evenfed"
    sys_version = ""
    timeout = _SILENCE

    def do_GET(self) -> None:
        refusal = self._refusal()
        if refusal is not None:
            self._say(HTTPStatus.FORBIDDEN, refusal)
            return
        path, _, query = self.path.partition("?")
        if path == "/":
            self._send(HTTPStatus.OK, _HTML, self.server.newest().html())
        elif path == f"/{DATA}":
            self._send_data(parse_qs(query).get("after", [""])[0])
        else:
            self._say(HTTPStatus.NOT_FOUND, f"there is {self.server.address} and nothing else")

    def _send_data(self, key: str) -> None:
        """The newest data, or nothing for a viewer that has them."""
        edition = self.server.newest()
        if edition.key == key:
            self._send(HTTPStatus.NO_CONTENT, _JSON, "")
        else:
            self._send(HTTPStatus.OK, _JSON, edition.data)

    def _refusal(self) -> str | None:
        """Why the request is not answered, if it is not."""
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or hosts[0].lower() not in self.server.hosts:
            return f"this server is called {self.server.address} and by no other name"
        origins = {f"http://{host}" for host in self.server.hosts}
        for origin in self.headers.get_all("Origin") or []:
            if origin.lower() not in origins:
                return "requests of other sites are refused"
        site = self.headers.get("Sec-Fetch-Site", "none")
        is_visit = self.headers.get("Sec-Fetch-Mode") == "navigate"
        if site not in ("none", "same-origin") and not is_visit:
            return "requests of other sites are refused"
        return None

    def _refuse_method(self) -> None:
        self._say(HTTPStatus.METHOD_NOT_ALLOWED, "only GET is answered")

    do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_TRACE = do_CONNECT = _refuse_method  # noqa: N815

    def _say(self, status: HTTPStatus, sentence: str) -> None:
        self._send(status, _TEXT, f"{sentence}\n")

    def _send(self, status: HTTPStatus, kind: str, text: str) -> None:
        content = text.encode()
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET")
        if status is not HTTPStatus.NO_CONTENT:
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
        self.send_header("Connection", "close")  # which also notes to close it: no viewer keeps a thread
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not news."""
