"""A router whose pages show what the REST API returns, and whose forms change what it changes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar, get_args

from fastapi import APIRouter, Depends, Form, Request, Response

from ariane.console.texts.text_format import path_segment
from ariane.console.web.rendering import changed, render, shown_below
from ariane.console.web.view_model import ChangeForm

PLAN = "topics/plan.html"

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

    def form(
        self, path: str, location: str | None = None, *, template: str = "", plan: str = PLAN
    ) -> Callable[[ViewFunction], ViewFunction]:
        """Add the form of a change. It has the parameters of the decorated function, the fields of the form in place of JSON.

            @pages.form("/topics/{topic}/order", "/topics/{topic}/configuration")
            @api.put("/{topic}/order")
            async def put_order_configuration(services: Services, topic: str, form: OrderConfigForm) -> ChangeResult:

        Args:
            location: Page that follows, with names of the path and fields of the form in braces; None: the same page.
            template: Shows the result below the form, as `result`; empty: a notice says what was done.
            plan: The same for a dry run; empty: a notice.
        """

        def add(change: ViewFunction) -> ViewFunction:
            parameters = inspect.signature(change, eval_str=True).parameters
            takes_request = "request" in parameters

            async def submit(request: Request, **arguments: Any) -> Response:
                result = await change(**arguments | ({"request": request} if takes_request else {}))
                if shown := template or (plan if result.is_dry_run else ""):
                    return shown_below(request, shown, result=result)
                names = request.path_params | dict(arguments.get("form", ()))
                target = location and location.format(**{name: path_segment(value) for name, value in names.items()})
                return changed(request, result, location=None if result.is_dry_run else target)

            request = inspect.Parameter("request", inspect.Parameter.KEYWORD_ONLY, annotation=Request)
            fields = [_form_parameter(parameter) for name, parameter in parameters.items() if name != "request"]
            # FastAPI reads the parameters of a route from its signature.
            submit.__signature__ = inspect.Signature([request, *fields], return_annotation=Response)  # type: ignore[attr-defined]
            self.add_api_route(path, submit, methods=["POST"])
            return change

        return add


def _form_parameter(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return a parameter whose value is read from the fields of a form if it is a form, whatever the API reads it from."""
    annotation, *_ = get_args(parameter.annotation) or (parameter.annotation,)
    if isinstance(annotation, type) and issubclass(annotation, ChangeForm):
        parameter = parameter.replace(annotation=annotation, default=Form())
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
