"""The OpenLineage events of all tables are instances of the classes that OpenLineage generates from its published schemas."""

from __future__ import annotations

import importlib
from typing import Any

import msgspec
import pytest

from ariane.tables import lineage

GENERATED = "openlineage.client.generated"
REASON = "needs openlineage-python: pip install openlineage-python"
attr: Any = pytest.importorskip("attr", reason=REASON)
base: Any = pytest.importorskip(f"{GENERATED}.base", reason=REASON)
FACETS = {
    "schema": ("schema_dataset", "SchemaDatasetFacet"),
    "columnLineage": ("column_lineage_dataset", "ColumnLineageDatasetFacet"),
    "version": ("dataset_version_dataset", "DatasetVersionDatasetFacet"),
    "documentation": ("documentation_dataset", "DocumentationDatasetFacet"),
}


def assert_contains(whole: Any, part: Any) -> None:
    """Check that `whole` has all members of `part` with the same values; it may have others with default values."""
    if isinstance(part, dict):
        for name, value in part.items():
            assert_contains(whole[name], value)
    elif isinstance(part, list):
        assert len(whole) == len(part)
        for of_whole, of_part in zip(whole, part, strict=True):
            assert_contains(of_whole, of_part)
    else:
        assert whole == part


@pytest.mark.parametrize("home", ["/srv/tables", "s3://bucket/tables"])
@pytest.mark.parametrize("name", lineage.TABLES)
def test_events_have_the_members_of_the_schema(name: str, home: str) -> None:
    event = lineage.openlineage_event(lineage.TABLES[name], home, "2026-01-31T10:00:00+00:00")
    dataset = event["dataset"]
    assert event["schemaURL"] == base.DatasetEvent._get_schema()
    assert event.keys() == {field.name for field in attr.fields(base.DatasetEvent)}
    assert dataset.keys() == {field.name for field in attr.fields(base.StaticDataset)}
    assert dataset["facets"].keys() == FACETS.keys()
    for facet_name, (module, class_name) in FACETS.items():
        facet, kind = (
            dataset["facets"][facet_name],
            getattr(importlib.import_module(f"{GENERATED}.{module}"), class_name),
        )
        assert facet["_schemaURL"] == kind._get_schema()
        # Required members, their types, and no other members than the schema has.
        assert_contains(attr.asdict(msgspec.convert(facet, kind)), facet)
