"""A server with the part of the Hugging Face Hub's interface that downloads use, and with faults.

Large files redirect to a second server (the CDN) on another port. Requests are recorded as (server,
method, path, headers). A fault is a list of actions per path suffix, one per GET request."""

import contextlib
import hashlib
import json
import re
import subprocess
import sys
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LFS = (".safetensors", ".bin", ".gguf", ".model", ".flm")


def git_oid(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def sha256(data):
    return hashlib.sha256(data).hexdigest()


class Repo:
    """Files of one commit, by path."""

    def __init__(self, files, sha="a" * 40, branches=("main",), tags=()):
        self.files = {k: v.encode() if isinstance(v, str) else v for k, v in files.items()}
        self.sha, self.branches, self.tags = sha, list(branches), list(tags)
        self.token = None  # needed for access
        self.gated = False

    def lfs(self, path):
        return path.endswith(LFS)

    def etag(self, path):
        return (sha256 if self.lfs(path) else git_oid)(self.files[path])

    def tree(self):
        for path, data in sorted(self.files.items()):
            e = {"type": "file", "oid": git_oid(data), "size": len(data), "path": path}
            if self.lfs(path):
                e["lfs"] = {"oid": sha256(data), "size": len(data), "pointerSize": 134}
            yield e
        for folder in sorted({p.rsplit("/", 1)[0] for p in self.files if "/" in p}):
            yield {"type": "directory", "oid": "0" * 40, "size": 0, "path": folder}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def send(self, status, body=b"", **headers):
        self.send_response(status)
        for k, v in headers.items():
            if v is not None:
                self.send_header(k.replace("_", "-"), str(v))
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def error(self, status, code=None, message=None, **headers):
        self.send(
            status,
            b'{"error":"x"}',
            X_Error_Code=code,
            X_Error_Message=message or self.server.hub.message,
            **headers,
        )

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        hub = self.server.hub
        hub.requests.append((self.server.role, self.command, self.path, dict(self.headers)))
        action = hub.next_fault(self.path) if self.command == "GET" else None
        if action and action[0] == "status":
            return self.error(action[1], *action[2:3], **(action[3] if len(action) > 3 else {}))
        if action and action[0] == "redirect":
            return self.send(302, Location=action[1])
        path = urllib.parse.urlsplit(self.path).path
        if self.server.role == "cdn" or path.startswith("/plain/"):
            return self.content(hub.blobs[path], action)
        m = re.fullmatch(r"/api/models/([^/]+/[^/]+|[^/]+)/(revision|tree|refs)(?:/(.*))?", path)
        if m:
            return self.api(hub.repos.get(m[1]), m[2], urllib.parse.unquote(m[3] or ""))
        m = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.*)", path)
        return self.resolve(m, action) if m else self.error(404)

    def allowed(self, repo):
        given = self.headers.get("Authorization")
        if repo is None:
            self.error(401, "RepoNotFound", "Invalid username or password.")
        elif repo.token and given != f"Bearer {repo.token}":
            if repo.gated:
                self.error(403 if given else 401, "GatedRepo", "Access to model is restricted.")
            elif given:
                self.error(401, None, "Invalid credentials in Authorization header")
            else:
                self.error(401, "RepoNotFound", "Invalid username or password.")
        else:
            return True
        return False

    def api(self, repo, what, rev):
        if not self.allowed(repo):
            return
        if what == "refs":
            refs = {"branches": repo.branches, "tags": repo.tags}
            body = {
                k: [{"name": n, "ref": n, "targetCommit": repo.sha} for n in v]
                for k, v in refs.items()
            }
            return self.send(200, json.dumps(body).encode())
        if rev not in [*repo.branches, *repo.tags, repo.sha]:
            return self.error(404, "RevisionNotFound", f"Invalid rev id: {rev}")
        if what == "revision":
            siblings = [{"rfilename": p} for p in repo.files]
            return self.send(
                200, json.dumps({"id": "x", "sha": repo.sha, "siblings": siblings}).encode()
            )
        files = self.server.hub.edit(list(repo.tree()))
        if hasattr(files, "body"):
            return self.send(200, files.body)
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
        n, at = self.server.hub.page, int(query.get("cursor", ["0"])[0])
        link = None
        if at + n < len(files):
            link = f'<{self.server.hub.next_url or self.server.url}{urllib.parse.urlsplit(self.path).path}?recursive=true&cursor={at + n}>; rel="next"'
        self.send(200, json.dumps(files[at : at + n]).encode(), Link=link)

    def resolve(self, m, action):
        hub = self.server.hub
        repo, path = hub.repos.get(m[1]), urllib.parse.unquote(m[3])
        if not self.allowed(repo):
            return
        if m[2] not in [*repo.branches, *repo.tags, repo.sha]:
            return self.error(404, "RevisionNotFound")
        if path not in repo.files:
            return self.error(404, "EntryNotFound", X_Repo_Commit=repo.sha)
        etag, data = repo.etag(path), repo.files[path]
        facts = dict(
            X_Repo_Commit=repo.sha,
            X_Linked_ETag=f'"{hub.linked.get(path, etag)}"',
            X_Linked_Size=len(data),
        )
        if not repo.lfs(path):
            return self.content(data, action, ETag=f'"{etag}"', X_Repo_Commit=repo.sha)
        hub.blobs[f"/{etag}"] = hub.content.get(path, data)
        if self.command == "HEAD":
            return self.send(302, b"", Location=f"{hub.cdn.url}/{etag}", ETag=f'"{etag}"', **facts)
        self.send(302, b"", Location=f"{hub.cdn.url}/{etag}?Signature=x", **facts)

    def content(self, data, action, **facts):
        """Send a body, whole or from a byte on, with the fault of this request."""
        hub = self.server.hub
        facts.setdefault("ETag", f'"{sha256(data)[:16]}"' if hub.etags else None)
        kind = action[0] if action else None
        r = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        condition = self.headers.get("If-Range")
        first, status = 0, 200
        if self.headers.get("If-None-Match") == facts["ETag"] and facts["ETag"]:
            return self.send(304, **facts)
        if r and kind != "whole" and condition in (None, facts["ETag"]):
            first, status = int(r[1]), 206
            if first >= len(data):
                return self.send(416, Content_Range=f"bytes */{len(data)}")
            facts["Content_Range"] = (
                f"bytes {first + (1 if kind == 'shifted' else 0)}-{len(data) - 1}/{len(data)}"
            )
        body = data[first:]
        if kind == "more":
            body += b"more"
        self.send_response(status)
        for k, v in facts.items():
            if v is not None:
                self.send_header(k.replace("_", "-"), str(v))
        if hub.lengths:
            self.send_header("Content-Length", str(len(body)))
        else:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        if self.command == "HEAD":
            return
        with contextlib.suppress(OSError):
            if kind in ("cut", "stall"):
                self.wfile.write(body[: action[1]])
                self.wfile.flush()
                if kind == "stall":  # until the client has gone
                    hub.stalled.set()
                    while self.connection.recv(1):
                        pass
                self.close_connection = True
                self.connection.close()
            elif kind == "hold":  # the first bytes, and the rest when the test sets `released`
                self.wfile.write(body[: action[1]])
                self.wfile.flush()
                hub.stalled.set()
                hub.released.wait()
                self.wfile.write(body[action[1] :])
            elif kind == "slow":
                for i in range(0, len(body), action[1]):
                    self.wfile.write(body[i : i + action[1]])
                    self.wfile.flush()
            else:
                self.wfile.write(body)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 32

    def __init__(self, hub, role, tls=None):
        super().__init__(("127.0.0.1", 0), Handler)
        self.hub, self.role = hub, role
        if tls:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        host = "localhost" if tls else "127.0.0.1"
        self.url = f"http{'s' if tls else ''}://{host}:{self.server_address[1]}"
        threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        ).start()

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], OSError):  # clients that go away are part of the tests
            super().handle_error(request, client_address)


class Hub:
    def __init__(self, tls=None):
        self.repos, self.blobs, self.faults, self.requests = {}, {}, {}, []
        self.linked, self.content = {}, {}  # a wrong X-Linked-ETag, a wrong content, by path
        self.edit = lambda files: files  # changes the list of files
        self.page, self.etags, self.lengths = 1000, True, True
        self.next_url = self.message = None  # server of the next page; message of errors
        self.stalled, self.released = threading.Event(), threading.Event()
        self.lock = threading.Lock()
        self.server, self.cdn = Server(self, "hub", tls), Server(self, "cdn", tls)
        self.url = self.server.url

    def next_fault(self, path):
        with self.lock:
            for suffix, actions in self.faults.items():
                if actions and urllib.parse.urlsplit(path).path.endswith(suffix):
                    return actions.pop(0)

    def paths(self, role, method="GET"):
        return [p for r, m, p, _ in self.requests if r == role and m == method]

    def headers(self, role, name):
        return [h.get(name) for r, _, _, h in self.requests if r == role]

    def close(self):
        self.released.set()
        for s in (self.server, self.cdn):
            s.shutdown()
            s.server_close()


def certificates(folder):
    """Make a private CA and a certificate of localhost; returns (CA file, chain, key)."""

    def openssl(*args, **kw):
        subprocess.run(["openssl", *args], check=True, capture_output=True, cwd=folder, **kw)

    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    openssl(
        "req",
        "-x509",
        *new,
        "-keyout",
        "ca.key",
        "-out",
        "ca.pem",
        "-subj",
        "/CN=test CA",
        "-days",
        "30",
    )
    openssl("req", *new, "-keyout", "key.pem", "-out", "req.pem", "-subj", "/CN=localhost")
    (folder / "ext").write_text("subjectAltName=DNS:localhost\n")
    signed = [
        "-CA",
        "ca.pem",
        "-CAkey",
        "ca.key",
        "-CAcreateserial",
        "-days",
        "30",
        "-extfile",
        "ext",
    ]
    openssl("x509", "-req", "-in", "req.pem", *signed, "-out", "cert.pem")
    return folder / "ca.pem", folder / "cert.pem", folder / "key.pem"
