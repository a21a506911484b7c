"""PUBLIC: pytest fixtures, available to every project with Ariane installed.

def test_orders(ariane_cluster): ...                # a LocalCluster for one test
async def test_orders(ariane_async_cluster): ...    # an AsyncLocalCluster, with any plugin that runs asynchronous tests
ariane_cluster_factory(brokers=2)                   # further clusters, until the end of the session

@pytest.mark.ariane_cluster(brokers=2, slaves=1)    # arguments of the cluster of one test
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

# The classes are imported by the fixtures: every pytest run loads this module.
if TYPE_CHECKING:
    from ariane.testing.cluster_factory import ClusterFactory
    from ariane.testing.local_cluster import AsyncLocalCluster, LocalCluster

MARKER = "ariane_cluster"


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}(directory=None, *, brokers=1, slaves=0, **settings): arguments of the fixtures ariane_cluster and"
        " ariane_async_cluster",
    )


@pytest.fixture
def ariane_cluster(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    """A name server and a broker for one test, with messages in memory: `ariane.testing.LocalCluster`."""
    from ariane.testing.cluster_factory import ClusterFactory

    with contextlib.ExitStack() as running:
        arguments, options = _marker(request)
        yield ClusterFactory(running)(*arguments, **options)


@pytest.fixture
def ariane_async_cluster(request: pytest.FixtureRequest) -> Iterator[AsyncLocalCluster]:
    """As ariane_cluster, for `async def` tests: its methods are awaited."""
    from ariane.testing.cluster_factory import ClusterFactory

    with contextlib.ExitStack() as running:
        arguments, options = _marker(request)
        yield ClusterFactory(running).asynchronous(*arguments, **options)


@pytest.fixture(scope="session")
def ariane_cluster_factory() -> Iterator[ClusterFactory]:
    """Starts clusters that run until the end of the session, for fixtures of your own with a wider scope than one test."""
    from ariane.testing.cluster_factory import ClusterFactory

    with contextlib.ExitStack() as running:
        yield ClusterFactory(running)


def _marker(request: pytest.FixtureRequest) -> tuple[tuple[Any, ...], dict[str, Any]]:
    marker = request.node.get_closest_marker(MARKER)
    return (marker.args, dict(marker.kwargs)) if marker is not None else ((), {})
