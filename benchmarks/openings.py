"""What an opened and closed page leaves behind: the server's memory after hundreds of openings against after a few.

Run: python benchmarks/openings.py [--pages 300] [--tabs]
Speaks Gradio's protocol without a browser: a heartbeat as long as the page is open, the events of loading, of tracing a
sentence of its own and of measuring it, and with --tabs one picture of every section.
"""

import argparse
import http.client
import json
import os
import re
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.page import app  # noqa: E402

WARM_UP = 20
GONE_AFTER = 40  # seconds after which a closed page must be forgotten (tfviz/ui/sessions.py: GRACE)


class OpenPage:
    """One opened page: its session, and the events of the app's config."""

    def __init__(self, address: str, config: dict[str, Any]) -> None:
        self.address, self.config, self.session = address, config, secrets.token_hex(6)
        fetch(address, "GET", "/")

    @contextmanager
    def opened(self) -> Iterator[None]:
        """While the browser has it: the heartbeat is a request that never ends."""
        heart = http.client.HTTPConnection(self.address, timeout=60)
        heart.request("GET", f"/gradio_api/heartbeat/{self.session}")
        answer = heart.getresponse()
        answer.readline()
        try:
            yield
        finally:
            answer.close()
            heart.close()

    def named(self, name: str) -> dict[str, Any]:
        """The first dependency whose function has this name."""
        return next(one for one in self.config["dependencies"] if one["api_name"] == name)

    def drawings(self) -> list[dict[str, Any]]:
        """The listeners of the English page's pictures."""
        wanted = [one for one in self.config["dependencies"] if str(one["api_name"]).startswith("wanted")]
        return wanted[: len(wanted) // 2]

    def call(self, dependency: dict[str, Any], data: list[Any], event: Any = None) -> dict[str, Any]:
        """The last answer to an event."""
        body = {"fn_index": dependency["id"], "data": data, "event_data": event, "session_hash": self.session}
        fetch(self.address, "POST", "/gradio_api/queue/join", json.dumps({**body, "trigger_id": None}))
        stream = http.client.HTTPConnection(self.address, timeout=300)
        stream.request("GET", f"/gradio_api/queue/data?session_hash={self.session}")
        answer = stream.getresponse()
        while line := answer.readline():
            if line.startswith(b"data:"):
                message: dict[str, Any] = json.loads(line[5:])
                if message["msg"] == "process_completed":
                    stream.close()
                    return message
        raise RuntimeError("the stream ended before its event did")


def fetch(address: str, method: str, path: str, body: str | None = None) -> bytes:
    """The whole answer to one request."""
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request(method, path, body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    if answer.status != 200:
        raise RuntimeError(f"{path}: {answer.status} {text[:200]!r}")
    return text


def open_and_close(address: str, config: dict[str, Any], i: int, tabs: bool) -> None:
    page = OpenPage(address, config)
    with page.opened():
        page.call(page.named("open_page"), [])
        sentence = f"The animal didn't cross the street because number {i} was too tired"
        page.call(page.named("trace"), [sentence, "", "smollm2-135m", "flash", "fp32", None, None])
        page.call(page.named("measure_current"), [None])
        for drawing in page.drawings() if tabs else ():
            page.call(drawing, [None] * len(drawing["inputs"]), {"key": str(i)})


def child() -> int:
    """The process that `app` has started."""
    return int(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()[-1])


def memory_of(pid: int) -> float:
    """Resident MiB of a process and nothing of its children."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--pages", type=int, default=300)
    arguments.add_argument("--tabs", action="store_true")
    options = arguments.parse_args()
    with app() as url:
        address, pid = url.removeprefix("http://").rstrip("/"), child()
        config = json.loads(fetch(address, "GET", "/config"))
        for i in range(WARM_UP):
            open_and_close(address, config, i, options.tabs)
        time.sleep(GONE_AFTER)
        before = memory_of(pid)
        print(f"after {WARM_UP} pages   {before:7.1f} MiB", flush=True)
        for i in range(options.pages):
            open_and_close(address, config, WARM_UP + i, options.tabs)
        crowded = memory_of(pid)
        time.sleep(GONE_AFTER)
        after = memory_of(pid)
        print(f"{options.pages} more     {crowded:7.1f} MiB, and once they are forgotten {after:7.1f} MiB")
        print(
            f"{after / before:.3f}x, {1024 * (after - before) / options.pages:.0f} KiB per page (wanted: at most 1.05x)"
        )


if __name__ == "__main__":
    main()
