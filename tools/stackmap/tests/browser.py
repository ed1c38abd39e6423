# SPDX-License-Identifier: MIT OR Apache-2.0
"""Chromium without a screen, with one page."""

import os
import pathlib
import shutil
import time

from playwright.sync_api import sync_playwright

PROGRAM = "chromium-headless-shell"
PATIENCE = 20


def used():
    """The seconds of CPU that all processes below this one have used."""
    children, own = {}, {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(path.parent.name))
        own[int(path.parent.name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    pids = children.get(os.getpid(), [])
    for pid in pids:
        pids += children.get(pid, [])
    return sum(own[pid] for pid in pids)


class Browser:
    """A browser, and all requests and errors of its page."""

    def __init__(self, width=1200, height=760):
        self.playwright = sync_playwright().start()
        self.program = self.playwright.chromium.launch(executable_path=shutil.which(PROGRAM), args=["--disable-gpu"])
        self.page = self.program.new_page(viewport={"width": width, "height": height})
        self.tools = self.page.context.new_cdp_session(self.page)
        self.requests, self.errors = [], []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("websocket", lambda socket: self.requests.append(socket.url))
        self.page.on("pageerror", lambda error: self.errors.append(error.message))
        self.page.on("console", lambda message: message.type == "error" and self.errors.append(message.text))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.program.close()
        self.playwright.stop()

    def run(self, script):
        """The value of an expression, which the policy of the page does not forbid to evaluate."""
        result = self.tools.send("Runtime.evaluate", {"expression": script, "returnByValue": True, "awaitPromise": True})
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"]["exception"].get("description"))
        return result["result"].get("value")

    def open(self, url):
        """Opens a page of the tool, and returns when it shows something, or why it does not."""
        self.page.goto(url)
        end = time.monotonic() + PATIENCE
        while self.run("document.getElementById('status')?.textContent ?? 'reading the recording'") == "reading the recording":
            if time.monotonic() > end:
                raise TimeoutError(f"the page shows nothing: {self.errors}")
            time.sleep(0.05)
        self.painted()

    def painted(self):
        """Waits for what was drawn."""
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def press(self, *keys, shift=False):
        """Presses keys, one after the other."""
        for key in keys:
            self.page.keyboard.press(f"Shift+{key}" if shift else key)
        self.painted()

    def drag(self, *points):
        """Moves the mouse with its button pressed."""
        self.page.mouse.move(*points[0])
        self.page.mouse.down()
        for point in points[1:]:
            self.page.mouse.move(*point)
        self.page.mouse.up()
        self.painted()

    def place(self, selector):
        """Where an element is: left, top, width and height."""
        return [self.page.locator(selector).bounding_box()[key] for key in ("x", "y", "width", "height")]

    def text(self, selector):
        """The text of an element."""
        return self.page.text_content(selector)
