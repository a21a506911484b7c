"""Long polling: memory used by waiting pull requests is bounded."""

from __future__ import annotations

import asyncio

import pytest

from ariane.broker import long_polling as arrivals_module
from ariane.broker.long_polling import PullWaiters
from ariane.errors import ReplyError
from ariane.protocol.codes import ResponseCode
from ariane.store.message_store import Arrival


def test_subscriptions_of_waiting_pulls_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """100,000 pull requests may wait, each with a subscription of 16 KiB."""
    monkeypatch.setattr(arrivals_module, "SUBSCRIPTION_CHARS_MAX", 10)

    async def hold() -> None:
        waiters = PullWaiters()
        first = waiters.wait("T", 0, 0, None, 60_000, 6)
        with pytest.raises(ReplyError, match="10 characters") as refused:
            waiters.wait("T", 0, 0, None, 60_000, 5)
        assert refused.value.code == ResponseCode.SYSTEM_BUSY
        second = waiters.wait("T", 1, 0, None, 60_000, 4)
        waiters.notify([Arrival("T", 0, 1, b"")])
        await first
        await asyncio.sleep(0)  # its place is free when its callbacks have run
        third = waiters.wait("T", 0, 1, None, 60_000, 6)
        second.cancel()
        third.cancel()
        await asyncio.wait([second, third])
        waiters.wait("T", 0, 0, None, 60_000, 10).cancel()

    asyncio.run(hold())
