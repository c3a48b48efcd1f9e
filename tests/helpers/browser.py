"""A real browser for tests of web pages: headless Chromium through its driver. Tests skip where it is missing."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
]


class Browser:
    """One window. Everything that waits, waits for a condition and says which one did not come true."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, address: str) -> None:
        """Load a page anew."""
        self.driver.get("about:blank")
        self.driver.get(address)

    def run(self, script: str, *arguments: Any) -> Any:
        """The value of a script's `return`."""
        return self.driver.execute_script(script, *arguments)

    def wait(self, condition: str | Callable[[], Any], *, seconds: float = 20.0) -> Any:
        """The first true value of a function, or of a JavaScript expression, which may fail until the page is there."""
        script = f"try {{ return {condition} }} catch (error) {{ if (!(error instanceof TypeError)) throw error }}"
        end = time.monotonic() + seconds
        while True:
            value = self.run(script) if isinstance(condition, str) else condition()
            if value or time.monotonic() > end:
                assert value, f"not within {seconds} s: {condition}; the page says: {self.text('main')[:600]!r}"
                return value
            time.sleep(0.02)

    def text(self, selector: str = "body") -> str:
        """What a reader sees in the first element; "" without one."""
        return str(self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector))

    def texts(self, selector: str) -> list[str]:
        """What a reader sees in each element."""
        script = "return [...document.querySelectorAll(arguments[0])].map(e => e.innerText)"
        return list(self.run(script, selector))

    def count(self, selector: str) -> int:
        """How many elements there are."""
        return int(self.run("return document.querySelectorAll(arguments[0]).length", selector))

    def click(self, selector: str) -> None:
        """Click on the first element, as a person would: it must be visible and on top."""
        element = self.driver.find_element("css selector", selector)
        self.run("arguments[0].scrollIntoView({block: 'center'})", element)
        element.click()

    def type(self, selector: str, text: str) -> None:
        """Write into a field."""
        element = self.driver.find_element("css selector", selector)
        element.clear()
        element.send_keys(text)

    def choose(self, selector: str, value: str) -> None:
        """Choose an option of a list."""
        script = (
            "const [list, value] = [document.querySelector(arguments[0]), arguments[1]];"
            "list.value = value; list.dispatchEvent(new Event('change', {bubbles: true})); return list.value"
        )
        assert self.run(script, selector, value) == value, f"{selector} has no option {value!r}"

    def press(self, *keys: str) -> None:
        """Press keys where the focus is."""
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def hover(self, selector: str, *, part: float = 0.5) -> None:
        """Point at an element, `part` of its width from the left."""
        from selenium.webdriver.common.action_chains import ActionChains

        element = self.driver.find_element("css selector", selector)
        self.run("arguments[0].scrollIntoView({block: 'center'})", element)
        aside = round((part - 0.5) * element.size["width"])
        ActionChains(self.driver, duration=0).move_to_element_with_offset(element, aside, 0).perform()

    def size(self, width: int, height: int) -> None:
        """Change the size of the page."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, scheme: str) -> None:
        """What the system prefers: dark or light."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def overflows(self) -> bool:
        """Whether the page is wider than its window."""
        return bool(self.run("return document.documentElement.scrollWidth > innerWidth"))

    def problems(self) -> list[str]:
        """What the console has reported since the last call: errors, exceptions, refusals by the page's policy."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]

    def screenshot(self, path: Path) -> None:
        """Write what is seen to a PNG file."""
        self.driver.save_screenshot(str(path))


@contextmanager
def started_browser(profile: Path, *, width: int = 1400, height: int = 900) -> Iterator[Browser]:
    """A browser with a new profile; the test is skipped, with the reason, where there is none."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium: pip install agent-r1[dev]")
    from selenium.webdriver.chrome.service import Service

    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    chromedriver = shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        pytest.skip("needs Chromium and its driver: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(chromedriver))
    try:
        browser = Browser(driver)
        browser.size(width, height)
        browser.prefer("light")
        yield browser
    finally:
        driver.quit()
