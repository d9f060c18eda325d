"""A hub in this process: the routes that fetching a file needs, and what can go wrong on them.

As on the real one, a file of large file storage is a redirect to another origin, which must not see
the token; the redirect also offers Xet, which nobody may take.
"""

import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = (".pth", ".safetensors", ".gguf", ".st")  # in large file storage


class Request(NamedTuple):
    method: str
    path: str  # a content delivery network's begins with /cdn/
    range: str | None
    authorization: str | None


def git_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class StandInHub:
    """Holds repositories, and says what it was asked.

    Attributes:
        repositories: name -> file -> bytes.
        commit: what every branch stands for.
        requests: in the order in which they came.
        cuts: how many bytes of each next body are sent, until the connection is cut.
        stall_after: how many bytes of each body are sent, after which nothing happens.
        stalled: set when that has happened.
        ranges: whether it heeds a request for a part.
        served: file -> what is served in place of it.
        claims: file -> what is said of it in place of the truth: a sibling of the list.
        gated, private: names of repositories; private ones want the token "secret".
        status: answered to everything, if it is not 200.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.commit = COMMIT
        self.requests: list[Request] = []
        self.cuts: list[int] = []
        self.stall_after: int | None = None
        self.stalled = threading.Event()
        self.ranges = True
        self.served: dict[str, bytes] = {}
        self.claims: dict[str, dict] = {}
        self.gated: set[str] = set()
        self.private: set[str] = set()
        self.status = 200
        self.closed = threading.Event()  # wakes what has stalled
        self._servers = [self._serve(), self._serve()]
        self.url, self.cdn = (f"http://127.0.0.1:{s.server_address[1]}" for s in self._servers)

    def _serve(self) -> ThreadingHTTPServer:
        handler = type("Handler", (_Handler,), {"hub": self})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return server

    def close(self) -> None:
        self.closed.set()
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def bodies(self, file: bytes) -> list[str | None]:
        """The ranges in which these bytes were asked for, in large file storage."""
        path = f"/cdn/{hashlib.sha256(file).hexdigest()}"
        return [request.range for request in self.requests if request.path == path]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: StandInHub

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        hub, path = self.hub, unquote(urlsplit(self.path).path)
        token = self.headers["Authorization"]
        hub.requests.append(Request(self.command, path, self.headers["Range"], token))
        if hub.status != 200:
            self._refuse(hub.status)
        elif path.startswith("/cdn/"):
            self._content(path.removeprefix("/cdn/"))
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/(.+)", path):
            if self._may_see(match[1], match[2]):
                self._list(match[1])
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            if self._may_see(match[1], match[2]):
                self._resolve(match[1], match[3])
        else:
            self._refuse(404)

    def _may_see(self, name: str, revision: str) -> bool:
        hub, token = self.hub, self.headers["Authorization"]
        if token not in (None, "Bearer secret"):
            self._refuse(401, message="Invalid credentials in Authorization header")
        elif name not in hub.repositories or (name in hub.private and token is None):
            self._refuse(404 if token else 401, "RepoNotFound")
        elif revision not in ("main", "v1/tag", hub.commit):
            self._refuse(404, "RevisionNotFound")
        else:
            return True
        return False

    def _list(self, name: str) -> None:
        siblings = []
        for file, data in self.hub.repositories[name].items():
            entry = {"rfilename": file, "size": len(data), "blobId": git_id(data)}
            if file.endswith(LARGE):
                sha256 = hashlib.sha256(data).hexdigest()
                entry["lfs"] = {"size": len(data), "sha256": sha256, "pointerSize": 130}
            siblings.append(entry | self.hub.claims.get(file, {}))
        self._send(json.dumps({"id": name, "sha": self.hub.commit, "siblings": siblings}).encode())

    def _resolve(self, name: str, file: str) -> None:
        data = self.hub.repositories[name].get(file)
        if name in self.hub.gated and self.headers["Authorization"] is None:
            self._refuse(401, "GatedRepo")
        elif name in self.hub.gated:
            self._refuse(403, "GatedRepo")
        elif data is None:
            self._refuse(404, "EntryNotFound")
        elif not file.endswith(LARGE):
            self._send(
                self.hub.served.get(file, data),
                {"ETag": f'"{git_id(data)}"', "X-Repo-Commit": self.hub.commit},
            )
        else:
            sha256 = hashlib.sha256(data).hexdigest()
            self.send_response(302)
            self.send_header("Location", f"{self.hub.cdn}/cdn/{sha256}")
            self.send_header("X-Repo-Commit", self.hub.commit)
            self.send_header("X-Linked-Size", str(len(data)))
            self.send_header("X-Linked-ETag", f'"{sha256}"')
            self.send_header("X-Xet-Hash", sha256)
            self.send_header("Link", f'<{self.hub.url}/xet>; rel="xet-auth"')
            self.send_header("Content-Length", "0")
            self.end_headers()

    def _content(self, sha256: str) -> None:
        for files in self.hub.repositories.values():
            for file, data in files.items():
                if hashlib.sha256(data).hexdigest() == sha256:
                    self._send(self.hub.served.get(file, data))
                    return
        self._refuse(404)

    def _send(self, data: bytes, headers: dict[str, str] | None = None) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers["Range"] or "")
        start = int(asked[1]) if asked and self.hub.ranges else 0
        self.send_response(206 if start else 200)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        body = data[start:]
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if headers is None and self.path.startswith("/cdn/"):
            if self.hub.cuts:
                body = body[: self.hub.cuts.pop(0)]
                self.close_connection = True
            elif self.hub.stall_after is not None:
                self.wfile.write(body[: self.hub.stall_after])
                self.wfile.flush()
                self.hub.stalled.set()
                self.hub.closed.wait(60)
                self.close_connection = True
                return
        self.wfile.write(body)

    def _refuse(self, status: int, code: str = "", message: str = "") -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        if message:
            self.send_header("X-Error-Message", message)
        self.send_header("Content-Length", "0")
        self.end_headers()
