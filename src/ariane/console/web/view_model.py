"""`View`: values that a page shows and the API returns."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class View(BaseModel):
    """A value of pages and API. Its JSON has camel-case members; None is unknown, never zero.

    Docstrings below fields become descriptions of the OpenAPI document.
    """

    model_config = ConfigDict(
        frozen=True, alias_generator=to_camel, populate_by_name=True, use_attribute_docstrings=True
    )


class ChangeForm(BaseModel):
    """Arguments of a change: fields of an HTML form, or members of a JSON object. Unknown ones are refused."""

    model_config = ConfigDict(
        frozen=True,
        alias_generator=to_camel,
        populate_by_name=True,
        use_attribute_docstrings=True,
        extra="forbid",
        str_strip_whitespace=True,
    )


class ChangeResult(View):
    """Result of a change."""

    notice: str
    """What was done, for people."""
    changes: list[str] = []
    """Each change with the server that executed it; in a dry run those that would be executed."""
    is_dry_run: bool = False
    """Whether nothing was changed."""
