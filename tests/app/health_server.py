"""What `dflash2-mlx app` sees of a server, without one: `python health_server.py --port=N [--api-key …]`.

It notes its command line and its key's variable in the file NOTES names, and ends at SIGTERM with a last line.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

HEALTH = {"status": "ok", "server": os.environ.get("HEALTH_SERVER", "dflash2-mlx")}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps(HEALTH).encode()
        self.send_response(200 if self.path == "/health" else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


def main() -> None:
    if os.environ.get("HEALTH_FAILS"):
        print("no such model: 'nothing'")
        sys.exit(3)
    port = [int(word.partition("=")[2]) for word in sys.argv if word.startswith("--port=")][-1]
    Path(os.environ["NOTES"]).write_text(
        json.dumps({"words": sys.argv[1:], "key": os.environ.get("DFLASH2_API_KEY"), "pid": os.getpid()})
    )
    server = HTTPServer(("127.0.0.1", port), Handler)
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    server.serve_forever()
    server.server_close()
    Path(os.environ["NOTES"]).with_suffix(".ended").write_text("in order")


if __name__ == "__main__":
    main()
