"""Searching, sorting and paging of lists, on the server.

ListQuery (parameters of the URL) + all rows ─→ paginate ─→ Page: the rows of one page
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any, Generic, Literal, TypeVar

from pydantic import Field
from pydantic.alias_generators import to_camel

from ariane.console.web.view_model import View
from ariane.errors import UsageError

Row = TypeVar("Row")
OtherRow = TypeVar("OtherRow")
SortKey = Callable[[Row], Any]
"""Value by which a column is sorted; None is unknown and sorted last in both directions."""

SIZE_DEFAULT = 50
SIZE_MAX = 500
QUERY_MAX = 255  # characters of a search text


def sort_keys(*attributes: str, **others: str | SortKey[Any]) -> dict[str, SortKey[Any]]:
    """Return the sort keys of columns: attributes of rows, in camel case or under another name, or functions."""
    keys = {to_camel(name): name for name in attributes} | others
    return {column: attrgetter(key) if isinstance(key, str) else key for column, key in keys.items()}


class ListQuery(View):
    """Which rows of a list to return."""

    q: str = Field("", max_length=QUERY_MAX)
    """Text that names contain, ignoring case."""
    sort: str = ""
    """Column to sort by; empty: the list's own order."""
    order: Literal["asc", "desc"] = "asc"
    """Direction of the order."""
    page: int = Field(1, ge=1)
    """Number of the page, from 1."""
    size: int = Field(SIZE_DEFAULT, ge=1, le=SIZE_MAX)
    """Rows of a page."""


class Page(View, Generic[Row]):
    """A page of a list."""

    items: list[Row]
    """Rows of this page."""
    total: int
    """Rows of all pages."""
    page: int
    """Number of this page, from 1."""
    size: int
    """Rows of a full page."""
    sort: str
    """Column that the list is sorted by."""
    order: str
    """`asc` or `desc`."""
    q: str
    """Text that was searched."""

    @property
    def pages(self) -> int:
        """Number of pages, at least 1."""
        return max(1, -(-self.total // self.size))

    def with_items(self, items: list[OtherRow]) -> Page[OtherRow]:
        """Return the same page with other rows, for example those with more columns."""
        return Page.of(self, items=items)


# A page of a kind of rows inherits the descriptions. It has no source of its own, and pydantic would search all frames for it:
# more than a third of what the console's modules take to load.
Page.model_config["use_attribute_docstrings"] = False


def paginate(
    rows: Iterable[Row],
    query: ListQuery,
    *,
    name: Callable[[Row], str],
    columns: Mapping[str, SortKey[Row]],
    sort: str,
    is_descending: bool = False,
) -> Page[Row]:
    """Return one page of the rows: the last one if the query names a page after it.

    Args:
        name: Text of a row that is searched.
        columns: Sort key of each column.
        sort: Column to sort by if the query names none.
        is_descending: Whether that column is sorted in descending order.

    Raises:
        UsageError: the query names an unknown column.
    """
    column = query.sort or sort
    order = query.order if query.sort or not is_descending else "desc"
    if column not in columns:
        raise UsageError("sort", column, f"expected one of: {', '.join(sorted(columns))}")
    text = query.q.strip().lower()
    matches = [row for row in rows if text in name(row).lower()] if text else list(rows)
    key, is_descending = columns[column], order == "desc"
    valued = [row for row in matches if key(row) is not None]
    unknown = [row for row in matches if key(row) is None]
    # A list may have become shorter since the link to its last page was shown.
    number = min(query.page, max(1, -(-len(matches) // query.size)))
    last = number * query.size
    # The name is the second key: rows with equal values keep their place between two requests.
    valued.sort(key=name)
    if last < len(valued) // 8:
        select = heapq.nlargest if is_descending else heapq.nsmallest
        first_rows = select(last, valued, key=key)
    else:
        valued.sort(key=key, reverse=is_descending)
        unknown.sort(key=name)
        first_rows = valued + unknown
    items = first_rows[last - query.size : last]
    return Page(items=items, total=len(matches), page=number, size=query.size, sort=column, order=order, q=query.q)
