"""The process that downloads one repository: `python -m dflash2_server.downloads.worker`.

It reads a Job as one line of JSON from stdin and writes one JSON object a line to stdout: note, plan, config,
progress, and at last done or error. It ends when stdin does, which is when its parent is gone. It may be killed at
any time: what has come is resumed by the next one.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import asdict
from typing import IO, Any

_INTERVAL = 0.25  # seconds between two figures of progress


class Channel:
    """The lines to the parent, whole ones, from any thread."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def send(self, message: dict[str, Any]) -> None:
        with self._lock:
            try:
                self._stream.write(json.dumps(message) + "\n")
                self._stream.flush()
            except OSError:  # nobody reads any more
                os._exit(1)


def main() -> None:
    channel = Channel(sys.stdout)
    sys.stdout = sys.stderr  # what a library prints is no message
    line = sys.stdin.readline()
    threading.Thread(target=_end_with_parent, daemon=True).start()

    # Imported only now: the parent may already be gone.
    from .download import Download
    from .faults import Failure, classify
    from .job import Job

    job = Job.from_json(line)
    download = Download(job, channel.send)
    ended = threading.Event()
    threading.Thread(target=_tell_progress, args=(download.meter, channel, ended), daemon=True).start()
    try:
        message: dict[str, Any] = {"event": "done", "path": str(download.run())}
    except Failure as failure:
        message = {"event": "error", "error": asdict(failure.error)}
    except Exception as error:
        message = {"event": "error", "error": asdict(classify(error, job.repo_id).error)}
    ended.set()
    channel.send({"event": "progress", **download.meter.reading()})
    channel.send(message)
    os._exit(0)  # other files' threads may still wait for the network


def _tell_progress(meter: Any, channel: Channel, ended: threading.Event) -> None:
    # Also when nothing has come: the rate falls.
    while not ended.wait(_INTERVAL):
        channel.send({"event": "progress", **meter.reading()})


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main()
