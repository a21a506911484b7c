"""pyspark.daemon, less one complaint: Spark ends Python workers that were idle for a minute, and over a Unix socket each of
them would print that its pipe is broken. Nothing is lost by it: a worker that Spark still wants something of is not idle.

It is named to Spark (`spark.python.daemon.module`) with local masters, whose workers find this package. Workers that plan a read
come from a daemon that Spark lets nobody choose, and still print it.
"""

from __future__ import annotations

import socket

from pyspark import daemon

_worker = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """A worker until its socket is closed; its exit status."""
    try:
        return int(_worker(sock, authenticated) or 0)
    except BrokenPipeError:
        return 1


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
