"""A real Chromium for tests of pages: what it says on its console, what it asks for, what it saves."""

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
needs_chromium = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="no Chromium here; on Debian: apt-get install chromium chromium-driver"
)
_ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,900",
)


class Browser:
    """A browser with one page."""

    def __init__(self, driver, downloads: Path) -> None:
        self.driver = driver
        self.downloads = downloads

    def open(self, address: str, width: int = 1280, theme: str = "light") -> None:
        """Open a page and wait until all of it is drawn."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        preference = {"name": "prefers-color-scheme", "value": theme}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [preference]})
        self.driver.get(address)
        self.settled()

    def settled(self) -> None:
        """Wait until all charts show what is switched on."""
        self.wait("return document.body.dataset.ready === 'true'")

    def run(self, script: str, *arguments: object):
        return self.driver.execute_script(script, *arguments)

    def all(self, selector: str) -> list:
        return self.driver.find_elements("css selector", selector)

    def one(self, selector: str):
        return self.driver.find_element("css selector", selector)

    def wait(self, script: str, seconds: float = 60) -> None:
        """Until a script's answer is true."""
        end = time.monotonic() + seconds
        while not self.run(script):
            assert time.monotonic() < end, f"not after {seconds} s: {script}\n{self.console()}"
            time.sleep(0.05)

    def console(self) -> list[str]:
        """Errors and warnings since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """The addresses asked for since the last call."""
        addresses = []
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                addresses.append(message["params"]["request"]["url"])
        return addresses

    def saved(self, name: str) -> Path:
        """A file that the page saves, once it is whole."""
        path = self.downloads / name
        end = time.monotonic() + 30
        while not path.exists():
            assert time.monotonic() < end, f"{name} was not saved; there is {list(self.downloads.iterdir())}"
            time.sleep(0.05)
        return path


@contextmanager
def chromium(folder: Path) -> Iterator[Browser]:
    """A browser with a profile and downloads of its own."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    downloads = folder / "downloads"
    downloads.mkdir()
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in (*_ARGUMENTS, f"--user-data-dir={folder / 'profile'}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        driver.execute_cdp_cmd(
            "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(downloads), "eventsEnabled": False}
        )
        yield Browser(driver, downloads)
    finally:
        driver.quit()
