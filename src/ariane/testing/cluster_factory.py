"""Clusters that are started without a `with` block, by pytest fixtures."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, TypeVar

from ariane.testing.local_cluster import AsyncLocalCluster, LocalCluster, RunningCluster

ClusterType = TypeVar("ClusterType", bound=RunningCluster)


class ClusterFactory:
    """Starts clusters that run until the end of the session: the fixture `ariane_cluster_factory`."""

    def __init__(self, running: contextlib.ExitStack) -> None:
        self._running = running  # stops the clusters

    def __call__(
        self, directory: Path | str | None = None, *, brokers: int = 1, slaves: int = 0, **settings: Any
    ) -> LocalCluster:
        """Start a cluster for synchronous tests. Arguments as of `LocalCluster`."""
        return self._start(LocalCluster(directory, brokers=brokers, slaves=slaves, **settings))

    def asynchronous(
        self, directory: Path | str | None = None, *, brokers: int = 1, slaves: int = 0, **settings: Any
    ) -> AsyncLocalCluster:
        """Start a cluster for asynchronous tests. Arguments as of `LocalCluster`."""
        return self._start(AsyncLocalCluster(directory, brokers=brokers, slaves=slaves, **settings))

    def _start(self, cluster: ClusterType) -> ClusterType:
        cluster.start_servers()
        self._running.callback(cluster.stop_servers)
        return cluster
