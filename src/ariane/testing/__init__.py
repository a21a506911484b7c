"""PUBLIC: test support for applications that use Ariane.

    from ariane.testing import AsyncLocalCluster, LocalCluster

The names in `__all__` are the public API, with the pytest fixtures of `ariane.testing.plugin`: docs/testing.md. Each is imported
on first use, and none needs pytest.

Internal, for the tests of Ariane itself; these may change in any version:

virtual                                           a whole cluster in virtual time, with a simulated network and disk
clock, disk                                       a clock that a test advances; a disk that loses power
java, peers                                       real Java servers and clients
cluster_servers, hosted_broker, server_thread, fillable_disks    the parts of a local cluster
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

# Type checkers and editors see the names without importing anything at run time.
if TYPE_CHECKING:
    from ariane.protocol.codes import RequestCode, ResponseCode
    from ariane.testing.cluster_factory import ClusterFactory
    from ariane.testing.faults import Fault
    from ariane.testing.local_cluster import AsyncLocalCluster, LocalCluster
    from ariane.testing.local_server import LocalBroker, LocalNameServer
    from ariane.testing.movable_clock import ClusterClock

_MODULES = {
    "AsyncLocalCluster": "ariane.testing.local_cluster",
    "ClusterClock": "ariane.testing.movable_clock",
    "ClusterFactory": "ariane.testing.cluster_factory",
    "Fault": "ariane.testing.faults",
    "LocalBroker": "ariane.testing.local_server",
    "LocalCluster": "ariane.testing.local_cluster",
    "LocalNameServer": "ariane.testing.local_server",
    "RequestCode": "ariane.protocol.codes",
    "ResponseCode": "ariane.protocol.codes",
}

__all__ = [
    "AsyncLocalCluster",
    "ClusterClock",
    "ClusterFactory",
    "Fault",
    "LocalBroker",
    "LocalCluster",
    "LocalNameServer",
    "RequestCode",
    "ResponseCode",
]

# Hidden from type checkers: with it, they would accept every misspelt name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
