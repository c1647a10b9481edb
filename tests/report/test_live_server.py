"""The server of a live page: real requests, also those that must be refused."""

import http.client
import socket
import threading
from contextlib import contextmanager

import pytest

from evenfed.core.errors import InputError
from evenfed.report.live.server import PageServer, PageVersion


class Growing:
    """Editions 1, 2, ... as the test says."""

    number = 1

    def newest(self) -> PageVersion:
        number = self.number
        return PageVersion(f"key-{number}", lambda: f"<p>page {number}</p>", f'{{"number": {number}}}')


@contextmanager
def serving(newest, port=0):
    server = PageServer(newest, port)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def editions():
    return Growing()


@pytest.fixture
def server(editions):
    with serving(editions.newest) as server:
        yield server


@pytest.fixture
def ask(server):
    """One request; its status, text and headers."""

    def request(path="/", method="GET", host=None, body=None, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.putrequest(method, path, skip_host=True)
        if host != "":
            connection.putheader("Host", host or f"127.0.0.1:{server.port}")
        for name, value in given.items():
            connection.putheader(name, value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text, dict(answer.headers)

    return request


def test_the_page_and_its_data(ask, server, editions):
    status, text, headers = ask()
    assert (status, text) == (200, "<p>page 1</p>")
    assert headers["Content-Type"] == "text/html; charset=utf-8" and headers["Cache-Control"] == "no-store"
    assert ask("/data")[:2] == (200, '{"number": 1}')
    assert ask("/data?after=key-1")[:2] == (204, "")
    editions.number = 2
    assert ask("/data?after=key-1")[:2] == (200, '{"number": 2}')
    assert ask("/?anything")[:2] == (200, "<p>page 2</p>")
    assert ask(host=f"LOCALHOST:{server.port}")[0] == 200
    assert server.address == f"http://127.0.0.1:{server.port}/"


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "0.0.0.0:{port}", ""]
)
def test_other_names_are_refused(host, ask, server):
    for path in ("/", "/data"):
        status, text, _ = ask(path, host=host.format(port=server.port))
        assert status == 403 and "number" not in text and "page" not in text


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1:{port}", "http://127.0.0.1:1"])
def test_other_origins_are_refused(origin, ask, server):
    assert ask("/data", Origin=origin.format(port=server.port))[0] == 403
    assert ask("/data", Origin=f"http://127.0.0.1:{server.port}")[0] == 200


def test_other_sites_may_link_to_the_page_but_not_use_it(ask):
    assert ask("/data", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="no-cors")[0] == 403
    assert ask("/", Sec_Fetch_Site="same-site", Sec_Fetch_Mode="cors")[0] == 403
    status, _, headers = ask("/", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate")
    assert status == 200
    assert headers["Content-Security-Policy"] == "frame-ancestors 'none'"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert "Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE"])
def test_only_get_is_answered(method, ask):
    status, text, headers = ask("/data", method, body=b"x" * 10)
    assert (status, headers["Allow"]) == (405, "GET") and "number" not in text
    assert ask("/", "BREW")[0] == 501


@pytest.mark.parametrize("path", ["/header.json", "/../etc/passwd", "/data/", "http://evil.example/", "/%2e%2e/x"])
def test_there_is_nothing_else(path, ask):
    assert ask(path)[0] == 404


def test_what_is_no_request_is_refused_and_the_server_goes_on(server, ask, capfd):
    for nonsense in (b"\x00\xff\r\n\r\n", b"GET / HTTP/1.1\r\nHost", b"GET http://[/ HTTP/1.1\r\n\r\n", b"G" * 70000):
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as raw:
            raw.sendall(nonsense)
            raw.shutdown(socket.SHUT_WR)
            assert b"200 OK" not in raw.recv(1000)
    assert ask()[0] == 200
    assert "Traceback" not in capfd.readouterr().err


def test_two_host_headers_are_refused(server):
    own = f"127.0.0.1:{server.port}"
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as raw:
        raw.sendall(f"GET /data HTTP/1.1\r\nHost: {own}\r\nHost: evil.example\r\nConnection: close\r\n\r\n".encode())
        assert b"403 Forbidden" in raw.recv(1000)


def test_a_viewer_that_goes_away_is_no_error(server, ask, editions, capfd):
    editions.newest = None
    server.newest = lambda: PageVersion("large", lambda: "x" * 50_000_000, "")
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as raw:
        raw.sendall(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode())
        raw.recv(10)
    assert ask()[0] == 200
    assert capfd.readouterr().err == ""


def test_several_viewers_do_not_wait_for_each_other(server, ask):
    idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(20)]
    assert ask()[0] == 200
    for connection in idle:
        connection.close()


def test_a_port_that_is_taken(server, editions):
    with pytest.raises(InputError, match=rf"port {server.port} is in use.*--port 0"):
        PageServer(editions.newest, server.port)


def test_it_listens_on_this_machine_alone(server):
    assert server.socket.getsockname()[0] == "127.0.0.1"
