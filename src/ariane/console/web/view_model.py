"""`View`: values that a page shows and the API returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.alias_generators import to_camel


class View(BaseModel):
    """A value of pages and API. Its JSON has camel-case members; None is unknown, never zero.

    Docstrings below fields become descriptions of the OpenAPI document.
    """

    model_config = ConfigDict(
        frozen=True, alias_generator=to_camel, populate_by_name=True, use_attribute_docstrings=True
    )

    @classmethod
    def of(cls, *values: object, **members: Any) -> Self:
        """Return the view of values: a member that is not given is the attribute of its name, of the first value that has one."""
        for name in cls.model_fields.keys() - members.keys():
            for value in values:
                if hasattr(value, name):
                    members[name] = getattr(value, name)
                    break
        return cls(**members)


class PartialView(View):
    """Values of the servers that responded."""

    as_of_ms: int
    """Time of the values, in milliseconds since the epoch."""
    unavailable: list[str]
    """Servers that did not respond, with the reason."""


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

    @model_validator(mode="before")
    @classmethod
    def _check_texts(cls, data: Any) -> Any:
        return check_encodable(data)


def check_encodable(data: Any) -> Any:
    """Return the values of a request, if UTF-8 can encode all of their texts: JSON can contain half a surrogate pair.

    Raises:
        ValueError: a text cannot be encoded, so that no broker, file or answer could contain it.
    """
    remaining = [data]  # no recursion: JSON may be nested deeper than Python's calls
    while remaining:
        value = remaining.pop()
        if isinstance(value, str) and not value.isascii():
            _check_text(value)
        elif isinstance(value, Mapping):
            remaining += [*value, *value.values()]
        elif isinstance(value, list | tuple):
            remaining += value
    return data


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("expected text without single surrogates such as \\ud800") from None


class DryRunForm(ChangeForm):
    """Arguments of a change that can be tried."""

    is_dry_run: bool = False
    """Return the changes without executing them."""

    def verb(self, plan: str, done: str) -> str:
        """Return the verb of the notice: `would create` or `created`."""
        return f"would {plan}" if self.is_dry_run else done


class ChangeResult(View):
    """Result of a change."""

    notice: str
    """What was done, for people."""
    changes: list[str] = []
    """Each change with the server that executed it; in a dry run those that would be executed."""
    is_dry_run: bool = False
    """Whether nothing was changed."""
