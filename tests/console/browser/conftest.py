"""The cluster, the console and the browser, shared by all tests of this directory. (tests/conftest.py: one process runs them.)"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ariane.testing import java

if TYPE_CHECKING:
    from console_program import ConsoleProgram, TrafficProgram
    from page_faults import OpenContext, PageFaults
    from playwright.sync_api import Browser, BrowserContext, Page

HERE = Path(__file__).parent
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# The tests run as root in containers, where Chromium's sandbox is not available.
CHROMIUM_ARGUMENTS = ["--no-sandbox", "--disable-dev-shm-usage", "--force-color-profile=srgb"]


# The programs and the browser, closed after the last test of this directory: at the end of the session they would have slowed down
# all tests in between, and Playwright would have occupied the event loop of their thread.
PROGRAMS = ExitStack()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Close the programs when the next test belongs to another directory."""
    if nextitem is None or HERE not in Path(nextitem.fspath).parents:
        PROGRAMS.close()


def missing() -> str | None:
    """Return why the browser tests cannot run; None if they can."""
    for module, package in (
        ("playwright", "playwright"),
        ("fastapi", "'ariane[console]'"),
        ("uvicorn", "'ariane[console]'"),
    ):
        if importlib.util.find_spec(module) is None:
            return f"needs {module}: pip install {package}"
    return None if CHROMIUM else "needs Chromium: apt-get install chromium"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests of this directory, with the reason, on a machine that has no browser."""
    if reason := missing():
        for item in items:
            if HERE in Path(item.fspath).parents:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> TrafficProgram:
    """A name server, a master and a slave with traffic of Python clients, and of Java clients where Java is available."""
    from console_program import TrafficProgram

    program = TrafficProgram(tmp_path_factory.mktemp("cluster"), with_java=java.available() is None)
    return PROGRAMS.enter_context(program)


@pytest.fixture(scope="session")
def console(cluster: TrafficProgram, tmp_path_factory: pytest.TempPathFactory) -> ConsoleProgram:
    """The console of the cluster, without log-in."""
    from console_program import ConsoleProgram

    home = tmp_path_factory.mktemp("console")
    tables = home / "tables"
    if importlib.util.find_spec("pyarrow"):
        from report_rows import write_tables

        write_tables(tables)
    return PROGRAMS.enter_context(ConsoleProgram(cluster.info["namesrv"], home, tables=tables))


@pytest.fixture(scope="session")
def browser() -> Browser:
    from playwright.sync_api import sync_playwright

    playwright = PROGRAMS.enter_context(sync_playwright())
    chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_ARGUMENTS)
    PROGRAMS.callback(chromium.close)
    return chromium


@pytest.fixture
def open_context(browser: Browser) -> Iterator[OpenContext]:
    """A function that opens a browser context for a console and records faults; they fail the test at its end."""
    from page_faults import WIDE, PageFaults

    opened: list[tuple[BrowserContext, PageFaults]] = []

    def open_for(url: str, **options: object) -> tuple[BrowserContext, PageFaults]:
        settings = {"base_url": url, "viewport": WIDE, "timezone_id": "Europe/Berlin", "locale": "en-GB"} | options
        context = browser.new_context(**settings)  # type: ignore[arg-type]
        context.set_default_timeout(60_000)  # on a machine that other tests load
        opened.append((context, PageFaults(context, url)))
        return opened[-1]

    yield open_for
    faults = [fault for _, recorder in opened for fault in recorder.take()]
    for context, _ in opened:
        context.close()
    assert faults == []


@pytest.fixture
def page(console: ConsoleProgram, open_context: OpenContext) -> Page:
    """A page of the console. Errors, outside requests, failed responses and dialogs fail the test."""
    context, _ = open_context(console.url)
    return context.new_page()
