"""Chromium without a window, driven by selenium: Debian's packages, installed if they are missing."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from controlplane.needs import missing
from node.machine import install
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

_PACKAGES = ("chromium", "chromium-driver")
_AXE = (Path(__file__).parent / "vendor" / "axe-4.14.1.min.js").read_text(encoding="utf-8")
# Containers have no user namespaces for the sandbox, and little shared memory.
_FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")


def _programs() -> tuple[str, str] | None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


class Browser:
    """One browser. Pages are opened in its one tab."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def open(self, url: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Open a page in a window of this size, for somebody who prefers dark or light pages."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.driver.get(url)

    def ask(self, script: str, *arguments: Any) -> Any:
        """The value of a JavaScript expression; `$` and `$$` find elements."""
        helpers = "const $ = (s) => document.querySelector(s), $$ = (s) => [...document.querySelectorAll(s)];"
        return self.driver.execute_script(f"{helpers} return ({script});", *arguments)

    def until(self, script: str, *arguments: Any, within: float = 30.0) -> Any:
        """Wait for an expression to be true; returns its value. Only a test that fails reaches the bound.

        An expression that throws, and an empty list, are not true yet: what it reads may not have been drawn.
        """
        helpers = "const $ = (s) => document.querySelector(s), $$ = (s) => [...document.querySelectorAll(s)];"
        waits = (
            f"{helpers} const given = arguments, done = given[given.length - 1];"
            f"const until = performance.now() + {within}e3;"
            f"const ask = (...arguments) => ({script});"
            "const look = () => { let found, thrown = null;"
            "try { found = ask(...given); } catch (error) { thrown = String(error); }"
            "const over = (found && found.length !== 0) || performance.now() > until;"
            "if (over) done([found, thrown]); else requestAnimationFrame(look); }; look();"
        )
        self.driver.set_script_timeout(within + 10)
        found, thrown = self.driver.execute_async_script(waits, *arguments)
        assert found, f"this did not come true: {script} ({thrown or 'it threw nothing'})"
        return found

    def press(self, *keys: str) -> None:
        """Press keys, wherever the focus is."""
        self.driver.switch_to.active_element.send_keys(*keys)

    def complaints(self) -> list[str]:
        """What the browser logged since the last time: errors of scripts, and what a policy forbade."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in {"SEVERE", "WARNING"}]

    def violations(self) -> list[str]:
        """What axe finds against WCAG 2.2 AA and its own best practices: rule, impact and the elements."""
        self.driver.execute_script(_AXE)
        self.driver.set_script_timeout(240)  # thousands of elements on a busy machine
        found = self.driver.execute_async_script(
            "const done = arguments[0];"
            "axe.run(document, {resultTypes: ['violations']}).then((result) => done(result.violations))"
        )
        return [
            f"{one['id']} ({one['impact']}): {', '.join(str(each['target']) for each in one['nodes'][:3])}"
            for one in found
        ]


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """Start a browser, and end it afterwards."""
    programs = _programs()
    if programs is None:
        install(*_PACKAGES)
        programs = _programs()
    if programs is None:
        missing(f"a browser needs Debian's packages {' '.join(_PACKAGES)}")
    options = ChromeOptions()
    options.binary_location = programs[0]
    for flag in _FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options=options, service=Service(programs[1]))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
