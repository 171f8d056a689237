"""The web view in a real browser, headless: Debian's and Ubuntu's package `chromium`, driven over its own pipe."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import fcntl
import itertools
import json
import os
import select
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
import uvicorn
from starlette.applications import Starlette
from unit.daemon.web import sample

from rechannel.daemon.view.status import ControllerView
from rechannel.daemon.web.page import routes
from testbed.processes import wait_until

BINARY = next(
    (actual for name in ("chromium", "chromium-browser", "google-chrome") if (actual := shutil.which(name))), ""
)
PATIENCE = 60.0  # seconds; a browser starts slowly on a busy machine
HOSTILE = '"><img src=x onerror=alert(1)><script>window.broken = true</script>'

pytestmark = [
    pytest.mark.skipif(
        not BINARY, reason="THE WEB VIEW WAS NOT TRIED: there is no Chromium (apt-get install chromium)"
    ),
    pytest.mark.timeout(300),
]


class Browser:
    """Speaks the DevTools protocol over file descriptors 3 and 4 of the browser: NUL-ended JSON both ways."""

    def __init__(self, profile: Path) -> None:
        mine, theirs = self._pipes()
        command = [BINARY, "--headless", "--remote-debugging-pipe", f"--user-data-dir={profile}", "--disable-gpu"]
        command += ["--no-first-run", "--disable-background-networking", "--disable-dev-shm-usage", "--hide-scrollbars"]
        if os.geteuid() == 0:
            command.append("--no-sandbox")  # Chromium's sandbox does not start as root

        def connect() -> None:
            os.dup2(theirs[0], 3)
            os.dup2(theirs[1], 4)

        with (profile.parent / "chromium.log").open("wb") as log:
            self._process = subprocess.Popen(
                command, preexec_fn=connect, pass_fds=(3, 4), stdout=log, stderr=subprocess.STDOUT
            )
        for descriptor in theirs:
            os.close(descriptor)
        self._write, self._read = mine
        self._left = b""
        self._numbers = itertools.count(1)
        self.events: list[dict[str, Any]] = []
        self._session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    @staticmethod
    def _pipes() -> tuple[tuple[int, int], tuple[int, int]]:
        down, up = os.pipe(), os.pipe()
        # High numbers, so that putting them on 3 and 4 in the child overwrites none of them.
        theirs = fcntl.fcntl(down[0], fcntl.F_DUPFD_CLOEXEC, 50), fcntl.fcntl(up[1], fcntl.F_DUPFD_CLOEXEC, 50)
        os.close(down[0])
        os.close(up[1])
        return (down[1], up[0]), theirs

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while True:
            answer = self._next(deadline)
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._left:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            data = os.read(self._read, 1 << 20)
            assert data, "the browser ended"
            self._left += data
        first, self._left = self._left.split(b"\0", 1)
        return json.loads(first)

    def value(self, expression: str) -> Any:
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait(self, expression: str) -> None:
        wait_until(lambda: self.value(f"Boolean({expression})"), expression, PATIENCE)

    def open(self, url: str, width: int = 1600, *, dark: bool = False, script: bool = True) -> None:
        self.call("Page.navigate", url="about:blank")
        self.wait("location.href === 'about:blank' && document.readyState === 'complete'")
        self.events.clear()  # what the last page still had to say
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && document.getElementById('all')")

    def key(self, name: str, code: int) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code)

    def screenshot(self, path: Path) -> None:
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def requested(self) -> list[str]:
        return [item["params"]["request"]["url"] for item in self.events if item.get("method") == EVENT_REQUEST]

    def complaints(self) -> list[Any]:
        logged = [item["params"]["entry"] for item in self.events if item.get("method") == "Log.entryAdded"]
        called = [item["params"] for item in self.events if item.get("method") == "Runtime.consoleAPICalled"]
        thrown = [item["params"] for item in self.events if item.get("method") == "Runtime.exceptionThrown"]
        return [entry for entry in logged if entry["level"] in ("error", "warning")] + called + thrown

    def close(self) -> None:
        with contextlib.suppress(OSError, AssertionError):
            self._session = ""
            self.call("Browser.close")
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        os.close(self._write)
        os.close(self._read)


EVENT_REQUEST = "Network.requestWillBeSent"


class Shown:
    """A server whose view a test sets."""

    def __init__(self, every: float = 0.2) -> None:
        self.view: ControllerView = sample.sample(time.time())
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/"
        self._server = uvicorn.Server(
            uvicorn.Config(Starlette(routes=routes(lambda: self.view, every=every)), log_level="error", lifespan="off")
        )
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(10)
        self._socket.close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    profile = tmp_path_factory.mktemp("chromium") / "profile"
    profile.mkdir()
    opened = Browser(profile)
    yield opened
    opened.close()


@pytest.fixture
def shown() -> Iterator[Shown]:
    server = Shown()
    yield server
    server.close()


def test_it_renders_without_a_complaint_and_asks_nobody_else(browser, shown):
    browser.open(shown.url)
    browser.wait("performance.getEntriesByType('resource').filter((one) => one.name.endsWith('/fragment')).length > 2")
    assert browser.value("document.querySelectorAll('.cells li').length") == 52
    assert browser.value("document.querySelectorAll('.node').length") == 4
    assert browser.complaints() == []
    hosts = {urlsplit(url).netloc for url in browser.requested()}
    assert hosts == {urlsplit(shown.url).netloc}


def test_new_figures_arrive_without_a_reload_and_leave_the_reader_where_he_was(browser, shown):
    browser.open(shown.url)
    browser.value("window.first = true; document.querySelectorAll('summary')[1].click()")
    browser.value("document.querySelectorAll('summary')[1].focus()")
    landed = "document.querySelector('progress').value"
    assert browser.value(landed) == 0
    shown.view = sample.sample(time.time(), 3)
    browser.wait(f"{landed} === 3")
    assert browser.value("window.first"), "the page was loaded anew"
    assert browser.value("document.querySelectorAll('details')[1].open")
    assert browser.value("document.activeElement === document.querySelectorAll('summary')[1]")
    newer = msgspec.structs.replace(shown.view.decisions[2].decision, decision="newer", sentence="newer than all")
    newer_view = dataclasses.replace(shown.view.decisions[2], decision=newer)
    shown.view = dataclasses.replace(shown.view, decisions=(newer_view, *shown.view.decisions))
    browser.wait("document.querySelector('summary').textContent.includes('newer than all')")
    assert browser.value("document.activeElement === document.querySelectorAll('summary')[2]")


def test_a_controller_that_is_cut_off_or_gone_is_told_of(browser, shown):
    browser.open(shown.url)
    assert not browser.value("document.querySelector('#banners .banner')")
    shown.view = sample.away(time.time())
    browser.wait("document.getElementById('banners').textContent.includes('Redis is away (redis.internal:6379')")
    shown.close()
    browser.wait("!document.getElementById('silence').hidden")
    assert "does not answer" in browser.value("document.getElementById('silence').textContent")


def test_hostile_names_stay_text_also_when_they_arrive_later(browser, shown):
    browser.open(shown.url)
    (application,) = shown.view.applications
    queries = tuple(dataclasses.replace(query, name=HOSTILE) for query in application.queries)
    decisions = tuple(
        dataclasses.replace(made, decision=msgspec.structs.replace(made.decision, sentence=HOSTILE))
        for made in shown.view.decisions
    )
    application = dataclasses.replace(application, name=HOSTILE, problems=(HOSTILE,), queries=queries)
    shown.view = dataclasses.replace(shown.view, applications=(application,), decisions=decisions)
    browser.wait("document.querySelector('h3').textContent.includes('onerror')")
    assert browser.value("document.querySelectorAll('img, script:not([src])').length") == 0
    assert browser.value("window.broken === undefined")
    assert browser.complaints() == []


@pytest.mark.parametrize("width", [360, 1600])
@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_and_can_be_read(browser, shown, tmp_path, width, dark):
    browser.open(shown.url, width, dark=dark)
    assert browser.value("document.documentElement.scrollWidth") <= width
    lowest, arguments = browser.value(CONTRAST)
    assert lowest >= 4.5, arguments
    browser.screenshot(tmp_path / f"{width}-{'dark' if dark else 'light'}.png")


def test_it_is_used_by_keyboard_alone(browser, shown):
    browser.open(shown.url)
    browser.key("Tab", 9)
    assert browser.value("document.activeElement.className") == "skip"
    reached = set()
    for _ in range(40):
        browser.key("Tab", 9)
        reached.add(browser.value("document.activeElement.tagName + ' ' + document.activeElement.className"))
    assert {"A ", "DIV scroll", "SUMMARY ", "BUTTON "} <= reached


def test_the_first_paint_needs_no_script(browser, shown):
    browser.open(shown.url, script=False)
    assert browser.value("document.querySelectorAll('.cells li').length") == 52


# The lowest contrast of any text with what is behind it (WCAG 2), and that text.
CONTRAST = """(() => {
  const parse = (color) => (color.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const light = (color) => {
    const linear = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = color.slice(0, 3).map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = parse(getComputedStyle(at).backgroundColor);
      if (color.length < 4 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  let worst = [99, ""];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim();
    const element = walker.currentNode.parentElement;
    if (!text || ["SCRIPT", "NOSCRIPT"].includes(element.tagName)) continue;
    const pair = [light(parse(getComputedStyle(element).color)), light(behind(element))].sort((a, b) => b - a);
    const contrast = (pair[0] + 0.05) / (pair[1] + 0.05);
    if (contrast < worst[0]) worst = [contrast, `${element.className}: ${text}`];
  }
  return worst;
})()"""
