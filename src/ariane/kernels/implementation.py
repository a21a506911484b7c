"""The implementation of each interface of this package."""

from __future__ import annotations

from ariane.kernels.send_encoder import PythonSendEncoder
from ariane.kernels.send_turn import SendEncoder, SendSettings


def send_encoder(settings: SendSettings) -> SendEncoder:
    """Return an encoder of plain sends."""
    return PythonSendEncoder(settings)
