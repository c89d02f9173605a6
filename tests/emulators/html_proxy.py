"""A proxy in the way: whatever it is asked, it answers with an HTML page."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

PAGE = b"<!DOCTYPE html><html><head><title>403 Forbidden</title></head><body><h1>Access denied</h1></body></html>\n"
ANSWER = (
    b"HTTP/1.1 403 Forbidden\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: %d\r\n"
    b"Connection: close\r\n\r\n%s" % (len(PAGE), PAGE)
)


class HtmlProxy:
    """Takes any connection, at `endpoint`, and answers its first words with an HTTP/1.1 403 in HTML; a context manager.

    `requests` has the first line of each, such as `CONNECT monitoring.googleapis.com:443 HTTP/1.1`. It uses a bare
    socket, since a client may speak TLS or HTTP/2, which an HTTP server would not take for a request.
    """

    def __init__(self) -> None:
        self.requests: list[str] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, name="html-proxy")
        self._stopping = False

    def __enter__(self) -> HtmlProxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping = True
        socket.create_connection(self._socket.getsockname()).close()
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            with connection, suppress(OSError):
                if self._stopping:
                    return
                connection.settimeout(2)  # seconds; a client that says nothing does not hold up the others for long
                self.requests.append(connection.recv(4096).split(b"\r\n")[0].decode("latin-1"))
                connection.sendall(ANSWER)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(4096):  # else what it still sends makes a reset, and the page is lost
                    pass
