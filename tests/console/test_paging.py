"""Searching, sorting and paging of lists."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ariane.console.web.paging import ListQuery, paginate
from ariane.errors import UsageError


class Item(NamedTuple):
    name: str
    lag: int | None


COLUMNS = {"name": lambda row: row.name, "lag": lambda row: row.lag}
ITEMS = [Item("b", 3), Item("A", None), Item("c", 1), Item("ab", 3)]


def names(**query: object) -> list[str]:
    page = paginate(ITEMS, ListQuery.model_validate(query), name=lambda row: row.name, columns=COLUMNS, sort="name")
    return [row.name for row in page.items]


def test_unknown_values_are_last_in_both_directions() -> None:
    assert names(sort="lag") == ["c", "ab", "b", "A"]
    assert names(sort="lag", order="desc") == ["ab", "b", "c", "A"]


def test_a_search_ignores_case() -> None:
    assert names(q="a") == ["A", "ab"]


def test_an_unknown_column_is_refused() -> None:
    with pytest.raises(UsageError, match="sort = 'size': expected one of: lag, name"):
        names(sort="size")


def test_a_page_after_the_last_is_the_last() -> None:
    rows = [Item(f"{number:03}", number) for number in range(120)]
    query = ListQuery(page=9, size=50)
    page = paginate(rows, query, name=lambda row: row.name, columns=COLUMNS, sort="name")
    assert (page.page, page.items, page.total) == (3, rows[100:], 120)
    empty = paginate([], query, name=lambda row: row.name, columns=COLUMNS, sort="name")
    assert (empty.page, empty.items) == (1, [])


@given(st.lists(st.integers(0, 9), max_size=120), st.integers(1, 9), st.sampled_from(["asc", "desc"]))
def test_pages_are_the_sorted_list(lags: list[int], size: int, order: str) -> None:
    rows = [Item(f"{number:03}", lag) for number, lag in enumerate(lags)]
    found: list[Item] = []
    number = 1
    while True:
        query = ListQuery.model_validate({"sort": "lag", "order": order, "page": number, "size": size})
        page = paginate(rows, query, name=lambda row: row.name, columns=COLUMNS, sort="name")
        found += page.items
        if number >= page.pages:
            break
        number += 1
    assert found == sorted(rows, key=lambda row: row.lag or 0, reverse=order == "desc")
