"""Typed confirmation of deletions, checked on the server."""

from __future__ import annotations

from ariane.console.web.view_model import ChangeForm
from ariane.errors import UsageError


class DeletionForm(ChangeForm):
    """A deletion."""

    confirm: str = ""
    """The name of what is deleted, again."""


def check_confirmed(form: DeletionForm, name: str) -> None:
    """Check that the reader typed the name.

    Raises:
        UsageError: another text was typed.
    """
    if form.confirm != name:
        raise UsageError("confirm", form.confirm, f"expected {name}; nothing was deleted")
