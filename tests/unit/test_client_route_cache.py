"""Route cache: its requests to name servers."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from client_script import Script, instance, name_server, raising, route

from ariane.client.instance.route_cache import RouteCache
from ariane.errors import ConnectionLost, RouteNotFound
from ariane.protocol.codes import RequestCode
from ariane.protocol.command import Command

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


def test_an_unknown_topic_gets_the_queues_of_the_default_topic_until_it_exists():
    topics = {"TBW102": route("a", queues=8)}
    script = Script({ROUTE: name_server(topics)})

    async def play():
        routes = instance(script).routes
        queues = await routes.publish_queues("T", "TBW102", 4)
        assert len(queues) == 4
        assert {queue.topic for queue in queues} == {"T"}
        with pytest.raises(RouteNotFound):
            await routes.subscribe_queues("T")
        topics["T"] = route("a", "b", queues=3)
        assert await routes.refresh([]) == ["T"]
        assert len(routes.cached_publish_queues("T")) == 6
        assert len(await routes.subscribe_queues("T")) == 6
        assert routes.master_address("b") == "b:1"

    asyncio.run(play())


def test_a_missing_route_error_names_the_requested_topic():
    async def play():
        with pytest.raises(RouteNotFound, match="topic T: .*create it: ariane topic create T$"):
            await instance(Script({ROUTE: name_server({})})).routes.publish_queues("T", "TBW102", 4)

    asyncio.run(play())


def test_the_default_topic_of_a_cluster_without_brokers_is_not_one_to_create():
    async def play():
        with pytest.raises(RouteNotFound, match="topic TBW102: no such topic on name server [^ ]*$"):
            await instance(Script({ROUTE: name_server({})})).routes.publish_queues("TBW102", "TBW102", 4)

    asyncio.run(play())


def test_concurrent_lookups_share_one_request():
    script = Script({ROUTE: name_server({"T": route("a")})})

    async def play():
        routes = instance(script).routes
        await asyncio.gather(*(routes.publish_queues("T", "TBW102", 4) for _ in range(50)))

    asyncio.run(play())
    assert len(script.asked) == 1


def test_the_next_name_server_is_tried_if_one_does_not_respond():
    good = name_server({"T": route("a")})
    down = {"one:1"}

    def answer(asked):
        if asked.addr in down:
            raise ConnectionLost(asked.addr, "refused")
        return good(asked)

    script = Script({ROUTE: answer})

    async def play():
        routes = RouteCache(script, ("one:1", "two:1"), timeout_ms=1, rng=Random(2))
        for _ in range(4):
            await routes.fetch("T")
        down.add("two:1")
        with pytest.raises(ConnectionLost):
            await routes.fetch("T")

    asyncio.run(play())
    answered = [item.addr for item in script.asked]
    assert answered.count("two:1") == 5  # four answers, then one failure
    assert answered.count("one:1") <= 2  # once at the start at most, once at the end


def test_a_route_that_cannot_be_refreshed_stays_cached():
    script = Script({ROUTE: name_server({"T": route("a")})})

    async def play():
        routes = instance(script).routes
        await routes.subscribe_queues("T")
        script.answers[ROUTE] = raising(ConnectionLost("ns:1", "refused"))
        assert await routes.refresh(["T"]) == []
        assert routes.master_address("a") == "a:1"
        script.answers[ROUTE] = lambda asked: Command(1, remark="broken")
        assert await routes.refresh(["T"]) == []
        assert len(await routes.subscribe_queues("T")) == 2

    asyncio.run(play())


def test_brokers_without_routes_are_removed():
    topics = {"T": route("a", "b")}
    script = Script({ROUTE: name_server(topics)})

    async def play():
        routes = instance(script).routes
        await routes.subscribe_queues("T")
        topics["T"] = route("b")
        await routes.refresh(["T"])
        assert routes.all_addresses(masters_only=True) == ["b:1"]

    asyncio.run(play())


def test_without_a_name_server_a_client_of_many_topics_waits_for_one_timeout(caplog):
    names = [f"T{number}" for number in range(100)]
    script = Script({ROUTE: name_server({name: route("a") for name in names})})

    async def play():
        routes = instance(script).routes
        for name in names:
            await routes.subscribe_queues(name)
        script.answers[ROUTE] = raising(ConnectionLost("ns:1", "refused"))
        script.asked.clear()
        assert await routes.refresh(names) == []
        assert len(script.asked) == 2  # each name server once
        assert "Could not refresh the routes of 100 topics" in caplog.text

    asyncio.run(play())


def test_a_refresh_requests_only_the_topics_in_use():
    names = [f"T{number}" for number in range(1000)]
    script = Script({ROUTE: name_server({name: route("a") for name in names})})

    async def play():
        routes = instance(script).routes
        for name in names[:10]:
            await routes.subscribe_queues(name)
        script.asked.clear()
        await routes.refresh(names[:10])
        assert len(script.asked) == 10

    asyncio.run(play())
