"""Requests that wait for messages, pulls and those of POP: they leave room for other requests among those in flight."""

from __future__ import annotations

from ariane.broker.config.dynamic_config import DynamicConfig


class HeldRequests:
    """The number of held requests of a broker: three quarters of `serverRequestsMax` at most, which a few peers may fill."""

    def __init__(self, settings: DynamicConfig) -> None:
        self._settings = settings
        self.count = 0

    @property
    def maximum(self) -> int:
        """The number that may be held."""
        return self._settings.current.server_requests_max * 3 // 4

    @property
    def is_full(self) -> bool:
        """Whether no further request may be held."""
        return self.count >= self.maximum
