"""A headless Chromium through its driver's HTTP interface (W3C WebDriver), where installed."""

import json
import shutil
import subprocess
import urllib.request
from contextlib import contextmanager

import pytest

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")

KEYS = {"Tab": "\ue004", "Enter": "\ue007", "End": "\ue010", "Home": "\ue011",
        "Left": "\ue012", "Up": "\ue013", "Right": "\ue014", "Down": "\ue015"}  # fmt: skip
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


class Browser:
    """One page of one session."""

    def __init__(self, address):
        self._address = address

    def call(self, method, path, **body):
        request = urllib.request.Request(
            self._address + path,
            None if method == "GET" else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
            method=method,
        )
        with DIRECT.open(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def open(self, path):
        self.call("POST", "/url", url=path.as_uri())

    def script(self, text, *arguments):
        """The result of a function of that body; it has its `arguments`."""
        return self.call("POST", "/execute/sync", script=text, args=arguments)

    def press(self, *names):
        keys = [KEYS[name] for name in names]
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.call("POST", "/actions", actions=[{"type": "key", "id": "keys", "actions": actions}])

    def point(self, selector):
        """Move the mouse to the middle of an element."""
        found = self.call("POST", "/element", using="css selector", value=selector)
        move = {"type": "pointerMove", "duration": 0, "x": 0, "y": 0, "origin": found}
        self.call(
            "POST", "/actions", actions=[{"type": "pointer", "id": "mouse", "actions": [move]}]
        )

    def click(self, selector):
        found = self.call("POST", "/element", using="css selector", value=selector)
        self.call("POST", f"/element/{found[ELEMENT]}/click")

    def log(self):
        """The page's console: errors of scripts, and what its policy refused."""
        return [entry["message"] for entry in self.call("POST", "/se/log", type="browser")]


@contextmanager
def browser(*arguments):
    """A session with a fresh profile; ended with its processes."""
    driver = subprocess.Popen([DRIVER, "--port=0"], stdout=subprocess.PIPE, text=True)
    try:
        for line in driver.stdout:
            if "successfully on port" in line:
                break
        port = int(line.rstrip().rstrip(".").rsplit(" ", 1)[1])
        options = {
            "binary": BROWSER,
            "args": [
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                *arguments,
            ],
        }
        root = Browser(f"http://127.0.0.1:{port}")
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        try:
            session = root.call("POST", "/session", capabilities={"alwaysMatch": wanted})
        except OSError as error:  # a container may forbid what a browser needs
            pytest.skip(f"chromium does not start here: {error}")
        page = Browser(f"http://127.0.0.1:{port}/session/{session['sessionId']}")
        try:
            yield page
        finally:
            page.call("DELETE", "")
    finally:
        driver.terminate()
        driver.wait(30)
        driver.stdout.close()
