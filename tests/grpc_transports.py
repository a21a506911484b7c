"""The transports of the gRPC port, as parameters of tests; builds of the native kernels from earlier sources have none."""

from __future__ import annotations

import pytest

from ariane.kernels.implementation import selected

NEEDS_NATIVE = pytest.mark.skipif(
    selected().open_grpc_port is None, reason="the native kernels are not installed, or serve no gRPC"
)
TRANSPORTS = [pytest.param("native", marks=NEEDS_NATIVE), "aio"]
