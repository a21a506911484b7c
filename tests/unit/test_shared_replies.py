"""Replies that are computed once for all requests that wait for them."""

from __future__ import annotations

import asyncio
import itertools

from ariane.net.limits.paced_calls import CALLS_PER_TICK
from ariane.net.replies import Reply
from ariane.net.shared_replies import SharedReplies


def test_requests_join_a_computation_until_it_starts() -> None:
    async def run() -> None:
        replies, numbers, may_end = SharedReplies(), itertools.count(), asyncio.Event()

        async def make() -> Reply:
            number = next(numbers)
            await may_end.wait()
            return Reply(number)

        early = [asyncio.ensure_future(replies.get("list", make)) for _ in range(3)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # the computation has started
        late = [asyncio.ensure_future(replies.get("list", make)) for _ in range(2)]
        early[0].cancel()
        may_end.set()
        assert [(await task).code for task in (*early[1:], *late)] == [0, 0, 1, 1]

    asyncio.run(run())


def test_a_computation_that_fails_fails_each_request() -> None:
    async def run() -> None:
        replies = SharedReplies()

        async def make() -> Reply:
            raise ValueError("no list")

        results = await asyncio.gather(*(replies.get("list", make) for _ in range(3)), return_exceptions=True)
        assert [str(result) for result in results] == ["no list"] * 3

    asyncio.run(run())


def test_a_result_ends_a_bounded_number_of_requests_in_each_tick() -> None:
    """Each of 16,384 requests of a connection for the same list builds a response."""

    async def run() -> None:
        replies = SharedReplies()

        async def make() -> Reply:
            return Reply()

        requests = [asyncio.ensure_future(replies.get("list", make)) for _ in range(3 * CALLS_PER_TICK)]
        ended = 0
        while ended < len(requests):
            await asyncio.sleep(0)
            before, ended = ended, sum(request.done() for request in requests)
            assert ended <= before + CALLS_PER_TICK

    asyncio.run(run())
