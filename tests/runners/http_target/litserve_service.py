"""LitServe with a known fault: ``litserve_service.py dependency``; it prints its port and its process."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
import time
import urllib.request
from typing import Any

import litserve  # type: ignore[import-not-found]


class Planted(litserve.LitAPI):  # type: ignore[misc]
    """One request in thirty waits for a slow dependency."""

    def setup(self, _: str) -> None:
        self.random = random.Random(7)

    def decode_request(self, request):  # type: ignore[no-untyped-def]  # LitServe would take it for a query's field
        return request["x"]

    def predict(self, x: Any) -> Any:
        time.sleep(0.004 + (0.12 if self.random.random() < 0.033 else 0.0))
        return x

    def encode_response(self, output: Any) -> dict[str, Any]:
        return {"y": output}


def tell_when_ready(port: int) -> None:
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1):
            break
        time.sleep(0.1)
    print(port, os.getpid(), flush=True)


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = litserve.LitServer(Planted(), accelerator="cpu")
    threading.Thread(target=tell_when_ready, args=(port,), daemon=True).start()
    server.run(host="127.0.0.1", port=port, log_level="error", generate_client_file=False)
