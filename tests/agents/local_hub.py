"""A Hugging Face Hub on this machine: real HTTP, repositories as folders, the few answers that its clients ask for.

Files that the Hub keeps apart from git (archives, pictures) are uploaded as there: asked for, put, then committed.
"""

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT = "1" * 40
TOKEN = "hf_local"
_LARGE = (".zip", ".gif", ".mp4", ".safetensors")


class LocalHub(ThreadingHTTPServer):
    """Serves repositories below a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder, self.large = folder, dict[str, bytes]()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> "LocalHub":
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: LocalHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, body: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self) -> None:
        found = re.fullmatch(r"/(\w+/\w+)/resolve/(?:main|1{40})/([\w./-]+)", self.path)
        file = self.server.folder / found[1] / found[2] if found else None
        if file is None or not file.is_file():
            self.answer(b"", 404, X_Error_Code="EntryNotFound" if found else "RepoNotFound")
            return
        body = file.read_bytes()
        self.answer(body, ETag=f'"{hashlib.sha256(body).hexdigest()}"', X_Repo_Commit=COMMIT)

    do_HEAD = do_GET

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers["Content-Length"]))
        whole = b""
        while size := int(self.rfile.readline(), 16):
            whole += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return whole

    def do_PUT(self) -> None:
        content = self.body()
        oid = self.path.removeprefix("/large/")
        assert hashlib.sha256(content).hexdigest() == oid
        self.server.large[oid] = content
        self.answer(b"")

    def do_POST(self) -> None:
        body = self.body()
        if self.headers.get("Authorization") != f"Bearer {TOKEN}" and "validate-yaml" not in self.path:
            self.answer(b"", 401)
            return
        self.answer(json.dumps(self.result(body)).encode(), Content_Type="application/json")

    def result(self, body: bytes) -> dict[str, Any]:
        url = self.server.url
        if self.path == "/api/validate-yaml":
            return {"errors": [], "warnings": []}
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            (self.server.folder / name).mkdir(parents=True, exist_ok=True)
            return {"url": f"{url}/{name}", "id": name, "name": name}
        if "/preupload/" in self.path:
            paths = [file["path"] for file in json.loads(body)["files"]]
            modes = ["lfs" if path.endswith(_LARGE) else "regular" for path in paths]
            pairs = zip(paths, modes, strict=True)
            return {"files": [{"path": path, "uploadMode": mode, "shouldIgnore": False} for path, mode in pairs]}
        if self.path.endswith("/info/lfs/objects/batch"):
            wanted = json.loads(body)["objects"]
            where = [{"upload": {"href": f"{url}/large/{each['oid']}"}} for each in wanted]
            return {"transfer": "basic", "objects": [{**w, "actions": a} for w, a in zip(wanted, where, strict=True)]}
        found = re.fullmatch(r"/api/models/(\w+/\w+)/commit/main", self.path)
        assert found, self.path
        for line in body.splitlines():
            part = json.loads(line)
            value = part["value"]
            if part["key"] in ("file", "lfsFile"):
                file = self.server.folder / found[1] / value["path"]
                file.parent.mkdir(parents=True, exist_ok=True)
                is_large = part["key"] == "lfsFile"
                file.write_bytes(self.server.large[value["oid"]] if is_large else base64.b64decode(value["content"]))
        return {"success": True, "commitUrl": f"{url}/{found[1]}/commit/{COMMIT}", "commitOid": COMMIT}
