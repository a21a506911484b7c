"""Rows combined from former ones and those of few messages are the rows that all messages yield, or are not known."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'ariane[spark]'")

import pyarrow as pa

from ariane.pipeline.publishing import combining
from ariane.pipeline.publishing.combining import Combination, Row

SEEDS = range(200)
LIMIT = 3

SUMS = pa.schema(
    {
        "group": pa.string(),
        "messages": pa.int64(),
        "bytes": pa.int64(),
        "failures": pa.int64(),
        "cost": pa.map_(pa.int32(), pa.int64()),
        "cost_max": pa.int64(),
    }
)
EXAMPLES = pa.schema(
    {
        "group": pa.string(),
        "count": pa.int64(),
        "worst": pa.int64(),
        "examples": pa.list_(pa.struct({"worst": pa.int64(), "message_id": pa.string(), "at": pa.int64()})),
    }
)
HIGHEST = pa.schema({"group": pa.string(), "message_id": pa.string(), "ms": pa.int64()})


def by_group(entries: Iterable[Row]) -> list[tuple[str, list[Row]]]:
    groups: dict[str, list[Row]] = {}
    for entry in entries:
        groups.setdefault(entry["group"], []).append(entry)
    return sorted(groups.items())


def sums(entries: Iterable[Row]) -> list[Row]:
    rows = []
    for group, members in by_group(entries):
        sizes = [entry["bytes"] for entry in members if entry["bytes"] is not None]
        costs = [entry["ms"] for entry in members if entry["ms"] is not None]
        rows.append(
            {
                "group": group,
                "messages": len(members),
                "bytes": sum(sizes) if sizes else None,
                "failures": sum(entry["ms"] is None for entry in members),
                "cost": sorted(Counter(ms // 2 for ms in costs).items()) or None,
                "cost_max": max(costs, default=None),
            }
        )
    return rows


def examples(entries: Iterable[Row]) -> list[Row]:
    rows = []
    for group, members in by_group(entries):
        order = sorted(
            members, key=lambda entry: (entry["ms"] is None, -(entry["ms"] or 0), entry["at"], entry["message_id"])
        )
        worst = [
            {"worst": entry["ms"], **{name: entry[name] for name in ("message_id", "at")}} for entry in order[:LIMIT]
        ]
        rows.append({"group": group, "count": len(members), "worst": worst[0]["worst"], "examples": worst})
    return rows


def slowness(row: Row) -> tuple[int, str]:
    return -row["ms"], row["message_id"]


def highest(entries: Iterable[Row]) -> list[Row]:
    rows = []
    for group, members in by_group(entry for entry in entries if entry["ms"] is not None):
        candidates = [{"group": group, "message_id": entry["message_id"], "ms": entry["ms"]} for entry in members]
        rows += sorted(candidates, key=slowness)[:LIMIT]
    return rows


def random_entry(rng: random.Random, message_id: str) -> Row:
    return {
        "message_id": message_id,
        "group": rng.choice("ab"),
        "ms": rng.choice((None, *range(8))),
        "bytes": rng.choice((None, 0, 5)),
        "at": rng.randrange(3),
    }


@pytest.mark.parametrize(
    ("schema", "compute", "change"),
    [
        pytest.param(
            SUMS,
            sums,
            partial(
                combining.change_sums,
                count="messages",
                sums=("messages", "bytes", "failures"),
                nullable_sums={"bytes"},
                measures=("cost",),
            ),
            id="sums",
        ),
        pytest.param(EXAMPLES, examples, partial(combining.change_examples, limit=LIMIT), id="examples"),
        pytest.param(HIGHEST, highest, partial(combining.change_highest, order=slowness, limit=LIMIT), id="highest"),
    ],
)
def test_changed_messages_combined_with_former_rows_yield_the_rows_of_all_messages(
    schema: pa.Schema, compute: Callable[[Iterable[Row]], list[Row]], change: Any
) -> None:
    outcomes: Counter[bool] = Counter()
    for seed in SEEDS:
        rng = random.Random(seed)
        ids = [f"m{number}" for number in range(rng.randrange(1, 9))]
        former = {name: random_entry(rng, name) for name in ids if rng.random() < 0.8}
        changed = set(rng.sample(ids, rng.randint(1, min(2, len(ids)))))
        entries = {**former, **{name: random_entry(rng, name) for name in changed}}

        def table(source: dict[str, Row], only: set[str] | None = None) -> pa.Table:
            rows = compute(entry for name, entry in source.items() if only is None or name in only)
            return pa.Table.from_pylist(rows, schema=schema)

        combined = combining.combine(
            Combination(("group",), change), table(former), table(former, changed), table(entries, changed), changed
        )
        outcomes[not combined.unknown] += 1
        is_known = [(group,) not in combined.unknown for group in table(entries)["group"].to_pylist()]
        expected = table(entries).filter(pa.array(is_known, pa.bool_())).to_pylist()
        assert sorted(map(str, combined.rows.to_pylist())) == sorted(map(str, expected)), seed
    assert outcomes[True] > len(SEEDS) / 2, "few changes are unknown"
    assert outcomes[False] > 0, "a value that the rows do not contain is unknown"


def test_unchanged_groups_are_not_read() -> None:
    def change(_: combining.GroupChange) -> list[Row]:
        raise AssertionError("no group has changed")

    rows = pa.Table.from_pylist([{"group": "a", "message_id": "m", "ms": 1}], schema=HIGHEST)
    combined = combining.combine(Combination(("group",), change), rows, rows, rows, {"m"})
    assert combined == (rows, set())
