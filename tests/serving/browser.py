"""A headless Chromium or Chrome for tests: Python controls the browser through the pipe of its DevTools protocol."""

import base64
import contextlib
import json
import os
import shutil
import subprocess

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Page:
    """A page of the browser, in which a test runs JavaScript."""

    def __init__(self, ask, session):
        self._ask, self._session = ask, session

    def run(self, script):
        """Run JavaScript in the page, await a returned promise, and return the value."""
        options = {"expression": script, "awaitPromise": True, "returnByValue": True}
        found = self._ask("Runtime.evaluate", options, self._session)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait_for(self, condition):
        """Wait until a JavaScript expression is true, and return its value."""
        return self.run(
            "new Promise(done => { const look = () => "
            "{ const found = (%s); found ? done(found) : setTimeout(look, 20) }; look() })" % condition
        )

    def picture(self, path):
        """Write a screenshot of this browser page to a PNG file."""
        found = self._ask("Page.captureScreenshot", {"format": "png"}, self._session)
        path.write_bytes(base64.b64decode(found["data"]))


@contextlib.contextmanager
def opened(url, folder):
    """Start a browser that writes its files to `folder`, load `url`, and yield the Page."""
    to_browser, from_browser = os.pipe(), os.pipe()
    options = [
        "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", f"--user-data-dir={folder}",
        "--window-size=1100,900",
    ]  # fmt: skip
    # With --remote-debugging-pipe, the browser reads from file descriptor 3 and writes to file descriptor 4.
    shell = f'exec "$@" 3<&{to_browser[0]} 4>&{from_browser[1]}'
    process = subprocess.Popen(
        ["bash", "-c", shell, "bash", PROGRAM, *options], pass_fds=(to_browser[0], from_browser[1]),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(to_browser[0])
    os.close(from_browser[1])
    with open(to_browser[1], "wb") as writing, open(from_browser[0], "rb") as reading, process:
        numbers = iter(range(1, 1 << 30))
        events = set()

        def read():
            text = b""
            while not text.endswith(b"\0"):
                byte = reading.read1(1)
                assert byte, "the browser has ended"
                text += byte
            return json.loads(text[:-1])

        def ask(method, parameters, session=None):
            number = next(numbers)
            message = {"id": number, "method": method, "params": parameters}
            writing.write(json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
            writing.flush()
            while (answer := read()).get("id") != number:
                events.add(answer.get("method"))
            assert "error" not in answer, answer
            return answer["result"]

        try:
            target = ask("Target.createTarget", {"url": "about:blank"})["targetId"]
            session = ask("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
            ask("Page.enable", {}, session)
            events.clear()
            ask("Page.navigate", {"url": url}, session)
            while "Page.loadEventFired" not in events:
                events.add(read().get("method"))
            yield Page(ask, session)
        finally:
            process.kill()
