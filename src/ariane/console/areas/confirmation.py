"""Typed confirmation of deletions, checked on the server."""

from __future__ import annotations

from ariane.console.web.view_model import ChangeForm
from ariane.errors import UsageError


class DeletionForm(ChangeForm):
    """A deletion."""

    confirm: str = ""
    """Name of the deleted object, typed again."""


def check_confirmed(form: DeletionForm, name: str, *, label: str = "", done: str = "deleted") -> None:
    """Check that the reader typed the name.

    Args:
        label: Words before the name in the error: `the name of the topic, `.
        done: Participle of the change, for the error.

    Raises:
        UsageError: another text was typed.
    """
    if form.confirm != name:
        raise UsageError("confirm", form.confirm, f"expected {label}{name}; nothing was {done}")
