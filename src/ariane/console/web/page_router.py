"""A router whose pages show what the REST API returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import APIRouter, Depends, Request, Response

from ariane.console.web.rendering import render

ViewFunction = TypeVar("ViewFunction", bound=Callable[..., Any])


class PageRouter(APIRouter):
    """A router of pages."""

    def page(self, path: str, template: str) -> Callable[[ViewFunction], ViewFunction]:
        """Add the page of a view: `template` shows what the decorated function returns as `view`.

        The page has the parameters of the function:

            @pages.page("/topics/{topic}", "topics/status.html")
            @api.get("/{topic}")
            async def get_topic(services: Services, topic: str) -> TopicStatusView:
        """

        def add(view_of: ViewFunction) -> ViewFunction:
            result = Depends(view_of)

            async def show(request: Request, view: Any = result) -> Response:
                return render(request, template, view=view)

            self.add_api_route(path, show, methods=["GET"])
            return view_of

        return add
