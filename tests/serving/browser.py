"""A headless Chromium that tests look into: its DevTools protocol, over two pipes."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support import TIMEOUT

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
KEYS = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39,
        "ArrowDown": 40, "End": 35, "Home": 36, "s": 83}  # fmt: skip


class Browser:
    """A running Chromium. Each of its pages has its own storage."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing = reading, writing
        self._numbers = itertools.count(1)
        self._received = b""
        self._pages: dict[str, Page] = {}

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict:
        """Calls a method of the protocol and returns its result."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._writing, data) :]
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            if answer.get("sessionId") in self._pages:
                self._pages[answer["sessionId"]].events.append(answer)

    def _receive(self) -> dict:
        while b"\0" not in self._received:
            if not select.select([self._reading], [], [], TIMEOUT)[0]:
                raise TimeoutError("the browser does not answer")
            data = os.read(self._reading, 1 << 16)
            if not data:
                raise RuntimeError("the browser has ended")
            self._received += data
        message, _, self._received = self._received.partition(b"\0")
        return json.loads(message)

    def page(self, url: str, width=1200, height=800, language="en-US", **options: Any) -> Page:
        """Opens a page in a window of this size; up to 500 pixels it is a phone's."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)
        page = Page(self, self.attach(target["targetId"]), context)
        page.start(url, width, height, language, **options)
        return page

    def attach(self, target: str) -> str:
        return self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def add(self, page: Page) -> None:
        self._pages[page.session] = page


class Page:
    """A page of the browser."""

    def __init__(self, browser: Browser, session: str, context: str) -> None:
        self.browser, self.session, self.context = browser, session, context
        self.events: list[dict] = []
        browser.add(self)

    def start(self, url: str, width: int, height: int, language: str, scheme: str = "light"):
        is_phone = width <= 500
        for domain in ("Runtime", "Log", "Page", "Network"):
            self.call(f"{domain}.enable")
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=is_phone)  # fmt: skip
        self.call("Emulation.setTouchEmulationEnabled", enabled=is_phone)
        agent = self.browser.call("Browser.getVersion")["userAgent"]
        self.call("Emulation.setUserAgentOverride", userAgent=agent, acceptLanguage=language)
        self.go(url)

    def call(self, method: str, **parameters: Any) -> dict:
        return self.browser.call(method, self.session, **parameters)

    def go(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def reload(self) -> None:
        self.run("window.isOld = true")
        self.call("Page.reload")
        self.until("!window.isOld && document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        done = self.call("Runtime.evaluate", expression=script, returnByValue=True,
                         awaitPromise=True, userGesture=True)  # fmt: skip
        if "exceptionDetails" in done:
            raise RuntimeError(done["exceptionDetails"]["exception"]["description"])
        return done["result"].get("value")

    def until(self, condition: str, seconds: float = 60) -> None:
        """Waits until an expression is true."""
        end = time.monotonic() + seconds
        while not self.run(f"Boolean({condition})"):
            if time.monotonic() > end:
                raise TimeoutError(f"not true: {condition}\n{self.text('body')}")
            time.sleep(0.03)

    def text(self, selector: str) -> str | None:
        """The text of an element as it is shown; None if it is not shown."""
        return self.run(f"""(() => {{
            const found = document.querySelector({json.dumps(selector)});
            return found?.checkVisibility() ? found.innerText : null; }})()""")

    def texts(self, selector: str) -> list[str]:
        """The texts of all elements, whether they are shown or not."""
        return self.run(f"[...document.querySelectorAll({json.dumps(selector)})]"
                        ".map((one) => one.textContent)")  # fmt: skip

    # ---- What a person does ----

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def key(self, name: str, modifiers: int = 0) -> None:
        """Presses a key, with those of `modifiers`: 1 is Alt, 2 Ctrl, 4 Meta and 8 Shift."""
        code = {"key": name, "code": name, "windowsVirtualKeyCode": KEYS[name],
                "modifiers": modifiers}  # fmt: skip
        if name == "Enter":
            code["text"] = "\r"
        self.call("Input.dispatchKeyEvent", type="keyDown", **code)
        self.call("Input.dispatchKeyEvent", type="keyUp", **code)

    def place(self, selector: str) -> tuple[float, float]:
        """The middle of an element in the window; it is scrolled into view first."""
        box = self.run(f"""(() => {{
            const found = document.querySelector({json.dumps(selector)});
            found.scrollIntoView({{block: "center", behavior: "instant"}});
            const box = found.getClientRects()[0];
            return [box.x + box.width / 2, box.y + box.height / 2]; }})()""")
        return box[0], box[1]

    def point(self, selector: str) -> None:
        """Moves the mouse to the middle of an element."""
        x, y = self.place(selector)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, selector: str) -> None:
        x, y = self.place(selector)
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, clickCount=1,
                      button="none" if kind == "mouseMoved" else "left")  # fmt: skip

    def tap(self, selector: str) -> None:
        x, y = self.place(selector)
        self.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def drop(self, *files: Path) -> None:
        """Drops files onto the middle of the window."""
        data = {"items": [], "files": [str(file) for file in files], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.call("Input.dispatchDragEvent", type=kind, x=200, y=200, data=data)

    def download_to(self, folder: Path) -> None:
        self.browser.call("Browser.setDownloadBehavior", behavior="allow",
                          downloadPath=str(folder), browserContextId=self.context)  # fmt: skip

    # ---- What goes wrong ----

    def errors(self) -> list[str]:
        """What the console has: exceptions, errors and warnings, without those of answers that are
        errors or did not come, which every browser prints."""
        self.run("0")  # what has happened until now has arrived then
        found = []
        for event in self.events:
            kind, parameters = event["method"], event["params"]
            if kind == "Runtime.exceptionThrown":
                found.append(parameters["exceptionDetails"]["exception"].get("description", "?"))
            elif kind == "Runtime.consoleAPICalled":
                found.append(str(parameters["args"]))
            elif kind == "Log.entryAdded" and parameters["entry"]["source"] != "network":
                found.append(parameters["entry"]["text"])
        return found

    def requests(self) -> list[dict]:
        """The requests that it has sent: {url, method, postData, …}."""
        self.run("0")
        sent = [one for one in self.events if one["method"] == "Network.requestWillBeSent"]
        return [one["params"]["request"] for one in sent]


@contextmanager
def chromium(profile: Path, *options: str) -> Iterator[Browser]:
    """Starts a browser with these options. Skips the test if there is none."""
    if CHROMIUM is None:
        pytest.skip("needs a browser, chromium")
    its_input, our_output = os.pipe()
    our_input, its_output = os.pipe()

    def as_three_and_four() -> None:
        first, second = (fcntl.fcntl(one, fcntl.F_DUPFD, 10) for one in (its_input, its_output))
        os.dup2(first, 3)
        os.dup2(second, 4)

    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
               "--no-first-run", "--remote-debugging-pipe", f"--user-data-dir={profile}",
               *options, "about:blank"]  # fmt: skip
    process = subprocess.Popen(
        command,
        preexec_fn=as_three_and_four,
        close_fds=False,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(its_input)
    os.close(its_output)
    browser = Browser(our_input, our_output)
    try:
        yield browser
        browser.call("Browser.close")
    finally:
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(our_input)
        os.close(our_output)
