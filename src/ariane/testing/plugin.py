"""PUBLIC: pytest fixtures, available to every project with Ariane installed.

def test_orders(ariane_cluster):
    run_my_application(namesrv=ariane_cluster.namesrv)
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ariane.testing.cluster import LocalCluster


@pytest.fixture
def ariane_cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """A name server and a broker for one test: `.namesrv`, `.broker`. They run in a thread, with their store in tmp_path."""
    from ariane.testing.cluster import (
        cluster_in_thread,
    )  # not at the top: costly

    with cluster_in_thread(tmp_path) as servers:
        yield servers
