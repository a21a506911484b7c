"""`mqadmin` on topics: Java's tool and ours on the same cluster, field by field, and every change by its effect."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from mqadmin_differential import CLUSTERS, run_both, run_json, run_ours, start_cluster

from ariane.testing.cluster import LocalCluster


@pytest.fixture(scope="module", params=CLUSTERS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with start_cluster(request.param, tmp_path_factory.mktemp(request.param)) as servers:
        yield servers


def test_topics_are_listed_alike(cluster: LocalCluster) -> None:
    (listed,) = run_both(cluster.namesrv, "topicList")
    listed.assert_equal(in_any_order=True)
    assert run_json(cluster.namesrv, "topicList") == listed.ours.splitlines()


def test_a_failure_has_an_exit_status(cluster: LocalCluster) -> None:
    ours = run_ours(cluster.namesrv, "updateTopic -c Nowhere -t T")
    assert ours.status == 1
    assert "no cluster Nowhere; expected one of: DefaultCluster" in ours.error
