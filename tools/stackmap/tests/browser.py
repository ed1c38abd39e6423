# SPDX-License-Identifier: MIT OR Apache-2.0
"""Chromium without a screen, driven by its DevTools protocol through a pipe: JSON, each message ended by a zero byte."""

import base64
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time

PROGRAM = "chromium-headless-shell"
PATIENCE = 20
# Keys that are no letters: their codes.
CODES = {"Tab": 9, "Enter": 13, "Escape": 27, "Backspace": 8, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38,
         "ArrowRight": 39, "ArrowDown": 40}
SHIFT = 8


def used(pid):
    """The seconds of CPU that a process and all below it have used."""
    children, own = {}, {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(path.parent.name))
        own[int(path.parent.name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    pids, seconds = [pid], 0
    for one in pids:
        seconds += own.get(one, 0)
        pids += children.get(one, [])
    return seconds


class Browser:
    """A browser with one page, which it says all requests and errors of."""

    def __init__(self, width=1200, height=760):
        self.profile = tempfile.mkdtemp()
        (to_read, self.to), (self.from_, to_write) = os.pipe(), os.pipe()
        # The browser reads from its descriptor 3, and writes to 4.
        redirect = f'exec {PROGRAM} "$@" 3<&{to_read} 4>&{to_write}'
        self.process = subprocess.Popen(
            ["bash", "-c", redirect, "browser", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
             f"--user-data-dir={self.profile}"],
            pass_fds=(to_read, to_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_write)
        self.number, self.buffer, self.session = 0, b"", None
        self.requests, self.errors = [], []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.ask(f"{domain}.enable")
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        os.close(self.to)
        os.close(self.from_)
        # Its other processes write for a moment yet.
        limit = time.monotonic() + PATIENCE
        while pathlib.Path(self.profile).exists() and time.monotonic() < limit:
            shutil.rmtree(self.profile, ignore_errors=True)
            time.sleep(0.05)

    def message(self):
        """The next message of the browser."""
        while b"\0" not in self.buffer:
            if not select.select([self.from_], [], [], PATIENCE)[0]:
                raise TimeoutError("the browser does not answer")
            piece = os.read(self.from_, 1 << 20)
            if not piece:
                raise EOFError("the browser has ended")
            self.buffer += piece
        text, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(text)

    def ask(self, method, **params):
        """Has the browser do something, and returns its answer."""
        self.number += 1
        request = {"id": self.number, "method": method, "params": params}
        if self.session:
            request["sessionId"] = self.session
        os.write(self.to, json.dumps(request).encode() + b"\0")
        while True:
            message = self.message()
            if message.get("id") == self.number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self.note(message)

    def note(self, message):
        """Keeps what is of interest of what happens."""
        params = message.get("params")
        match message.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Network.webSocketCreated" | "Network.webTransportCreated":
                self.requests.append(params["url"])
            case "Runtime.exceptionThrown":
                self.errors.append(params["exceptionDetails"]["exception"].get("description", "?"))
            case "Log.entryAdded" if params["entry"]["level"] == "error":
                self.errors.append(params["entry"]["text"])

    def run(self, script):
        """The value of an expression."""
        result = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"]["exception"].get("description"))
        return result["result"].get("value")

    def open(self, url):
        """Opens a page of the tool, and returns when it shows something, or why it does not."""
        self.ask("Page.navigate", url=url)
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
            code = CODES.get(key) or ord(key.upper())
            text = {} if key in CODES and key != "Enter" else {"text": "\r" if key == "Enter" else key}
            about = {"key": key, "windowsVirtualKeyCode": code, "modifiers": SHIFT if shift else 0}
            self.ask("Input.dispatchKeyEvent", type="keyDown", **about, **text)
            self.ask("Input.dispatchKeyEvent", type="keyUp", **about)
        self.painted()

    def drag(self, *points):
        """Moves the mouse with its button pressed; one point is a click."""
        for kind, (x, y) in (("mousePressed", points[0]), *(("mouseMoved", point) for point in points[1:]),
                             ("mouseReleased", points[-1])):
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)
        self.painted()

    def place(self, selector):
        """Where an element is: left, top, width and height."""
        return self.run(f"(({{x, y, width, height}}) => [x, y, width, height])"
                        f"(document.querySelector({json.dumps(selector)}).getBoundingClientRect())")

    def text(self, selector):
        """The text of an element."""
        return self.run(f"document.querySelector({json.dumps(selector)}).textContent")

    def scheme(self, name):
        """Prefers the light or the dark colours."""
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def picture(self, path):
        """Writes a picture of the page."""
        pathlib.Path(path).write_bytes(base64.b64decode(self.ask("Page.captureScreenshot")["data"]))
