"""A console with one page that has every shared part, without a cluster: what test_page_behaviour.py drives."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Self

import uvicorn
from fastapi import FastAPI, Form, Request, Response

from ariane.console.app import create_app
from ariane.console.services import ConsoleServices, open_services
from ariane.console.settings import ConsoleSettings
from ariane.console.web import rendering
from ariane.console.web.dependencies import ListParameters
from ariane.console.web.paging import paginate
from ariane.console.web.view_model import ChangeForm, ChangeResult, View
from ariane.errors import ServerUnavailable, UsageError

HOSTILE = "<img src=x onerror=alert(1)>"
PAGE = """
{% extends layout %}{% import "macros.html" as ui with context %}{% block title %}Sample{% endblock %}{% block content %}
{% call ui.header("Sample") %}{{ ui.open_button("delete", "Delete", "danger", "alert") }}{% endcall %}
{{ ui.search(rows, "rows") }}
{% call ui.live("rows", 1) %}
  <p id="count">{{ count }}</p>
  {{ ui.chart("rates", "Rates", options) }}
  <details id="more"><summary>More</summary><p>Details</p></details>
  {% call ui.table("Rows") %}<thead><tr>{{ ui.sort_header("Name", "name", rows, "rows") }}
    {{ ui.sort_header("Rate", "rate", rows, "rows", true) }}
    <th scope="col">Selection</th></tr></thead><tbody>
    {% for row in rows["items"] %}<tr id="row-{{ row.name }}">
      <th scope="row">{{ row.name }} {{ ui.copy(row.name) }}</th><td class="num">{{ row.rate }}</td>
      <td><input type="checkbox" data-select name="name" value="{{ row.name }}" aria-label="{{ row.name }}"></td></tr>{% endfor %}
  </tbody>{% endcall %}
  {{ ui.pager(rows, "rows") }}
{% endcall %}
{{ ui.confirm("delete", "Delete topic", "/topics/sample/delete", "orders", "Delete") }}
{% endblock %}"""


class SampleRow(View):
    """A row of the page."""

    name: str
    rate: int


class DeleteSampleForm(ChangeForm):
    """The form of the dialog."""

    confirm: str


ROWS = [SampleRow(name=f"name-{number:03d}", rate=number * 37 % 101) for number in range(120)]


class SampleSite:
    """The site, served from a thread. It can be stopped and started again on its port.

    Args:
        directory: Directory of the console's state.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        with socket.socket() as chosen:
            chosen.bind(("127.0.0.1", 0))
            self.port = chosen.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.count = 0  # pages that were rendered
        self.searches: list[str] = []  # texts of all requests
        self.delay_s = 0.0  # of answers to refreshes: requests of the text that was searched before
        self.slow_text = "-"  # searches of this text are delayed
        self.is_broken = False  # answers are 502
        self.is_logged_out = False  # answers are 401
        self.deleted: list[str] = []  # confirmations that arrived

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def reset(self) -> None:
        """Undo what a test changed."""
        self.delay_s, self.slow_text, self.is_broken, self.is_logged_out = 0.0, "-", False, False
        self.deleted.clear()
        if self._server is None:
            self.start()

    def start(self) -> None:
        """Serve, and wait until requests are accepted."""
        config = uvicorn.Config(self._app(), host="127.0.0.1", port=self.port, log_level="error", lifespan="on")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive(), "the site did not start"
            time.sleep(0.01)

    def stop(self) -> None:
        """Stop serving; open connections are closed."""
        if self._server is not None and self._thread is not None:
            self._server.should_exit = self._server.force_exit = True
            self._thread.join(30)
            self._server = None

    def _app(self) -> FastAPI:
        @asynccontextmanager
        async def services() -> AsyncIterator[ConsoleServices]:
            settings = ConsoleSettings(namesrv="127.0.0.1:1", data_dir=self._directory)
            async with open_services(settings) as opened:
                yield opened

        app = create_app(services())
        # Below /topics, because the table of permissions has a row for it.
        app.add_api_route("/topics/sample", self._page)
        app.add_api_route("/topics/sample/delete", self._delete, methods=["POST"])
        app.router.routes.insert(0, app.router.routes.pop())
        app.router.routes.insert(0, app.router.routes.pop())
        return app

    async def _page(self, request: Request, query: ListParameters) -> Response:
        self.searches.append(query.q)
        if query.q == self.slow_text:
            await asyncio.sleep(self.delay_s)
        if self.is_logged_out:
            return Response(status_code=401, headers={"HX-Redirect": "/nothing?logged-out"})
        if self.is_broken:
            raise ServerUnavailable("no name server responded")
        self.count += 1
        columns = {"name": lambda row: row.name, "rate": lambda row: row.rate}
        rows = paginate(ROWS, query, name=lambda row: row.name, columns=columns, sort="name")
        template = rendering._environment().from_string(PAGE)
        context: dict[str, Any] = {"rows": rows, "count": self.count, "options": self._options()}
        return rendering.render(request, template, **context)  # type: ignore[arg-type] # jinja2 takes templates, too

    def _options(self) -> dict[str, Any]:
        start = 1_795_336_715_000
        points = [[start + 5_000 * index, index % 7 + self.count] for index in range(30)]
        return {
            "unit": "rate",
            "series": [{"name": HOSTILE, "points": points}, {"name": "b", "points": [[start, None]]}],
        }

    async def _delete(self, request: Request, form: Annotated[DeleteSampleForm, Form()]) -> Response:
        if form.confirm != "orders":
            raise UsageError("confirm", form.confirm, "expected the name of the topic")
        if self.deleted:
            raise UsageError("confirm", form.confirm, "the topic is deleted already")
        self.deleted.append(form.confirm)
        return rendering.changed(request, ChangeResult(notice="Deleted topic orders."))
