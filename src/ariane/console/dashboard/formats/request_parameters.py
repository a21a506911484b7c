"""Parameters and bodies of requests, as Apache's dashboard accepts them: parameters in the query string, in a form, or in both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Depends, Request
from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.alias_generators import to_camel

from ariane.console.web.view_model import check_encodable
from ariane.errors import UsageError

FORM_TYPES = ("application/x-www-form-urlencoded", "multipart/form-data")
TRUE, FALSE = ("true", "on", "yes", "1"), ("false", "off", "no", "0", "")


class RequestParameters:
    """The parameters of a request."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def text(self, name: str) -> str:
        """Return a parameter that must be present.

        Raises:
            UsageError: it is missing.
        """
        if name not in self._values:
            raise UsageError(name, None, "expected this parameter in the query string or the form")
        return self._values[name]

    def optional(self, name: str) -> str | None:
        """Return a parameter; None if it is missing or blank."""
        return self._values.get(name, "").strip() or None

    def whole(self, name: str) -> int:
        """Return a whole number that must be present.

        Raises:
            UsageError: it is missing, or not a whole number.
        """
        text = self.text(name)
        try:
            return int(text)
        except ValueError:
            raise UsageError(name, text, "expected a whole number") from None

    def flag(self, name: str) -> bool:
        """Return a flag; False if it is missing.

        Raises:
            UsageError: it is neither true nor false.
        """
        text = self._values.get(name, "").strip().lower()
        if text not in (*TRUE, *FALSE):
            raise UsageError(name, text, "expected true or false")
        return text in TRUE


class RequestBody(BaseModel):
    """The JSON body of a request. Members that are not listed are ignored, as Apache does."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    @model_validator(mode="before")
    @classmethod
    def _check_texts(cls, data: Any) -> Any:
        return check_encodable(data)


async def read_parameters(request: Request) -> RequestParameters:
    """Return the parameters of a request."""
    values = dict(request.query_params)
    if request.headers.get("content-type", "").startswith(FORM_TYPES):
        form = await request.form()
        values |= {name: value for name, value in form.items() if isinstance(value, str)}
    return RequestParameters(values)


Parameters = Annotated[RequestParameters, Depends(read_parameters)]
