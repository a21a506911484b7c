"""Which rates a round does not request, because they are certainly zero."""

from __future__ import annotations

import pytest

from ariane.metrics.polling.scraped_cluster import ConnectedClient, GroupState, ScrapedBroker
from ariane.metrics.polling.settled_rates import SETTLED_S, SettledRates

PUT, GET = ("TOPIC_PUT_NUMS", "T"), ("GROUP_GET_NUMS", "T@G")
ONLINE = {"G": GroupState((ConnectedClient("10.0.0.9:1", "c"),))}
OFFLINE = {"G": GroupState()}


def broker(*, end: int = 9, offset: int = 5, version: int = 401, broker_id: int = 0, topic: str = "T") -> ScrapedBroker:
    return ScrapedBroker(
        cluster="c", name="b", broker_id=broker_id, addr=f"b:{broker_id}", is_up=True, runtime={"brokerVersion": str(version)},
        topics={topic: ((0, 0, end),)}, offsets={(topic, "G"): {0: offset}},
    )  # fmt: skip


class Rounds:
    """Rounds in which the broker reports zeros."""

    def __init__(self) -> None:
        self.rates = SettledRates()
        self.now_s = 1_000.0

    def round(
        self, after_s: float, polled: ScrapedBroker | None = None, groups: dict[str, GroupState] = OFFLINE,
        statistic: tuple[str, str] = PUT,
    ) -> bool:  # fmt: skip
        """Return whether the statistic is certainly zero. If not, the broker reports that it is."""
        self.now_s += after_s
        polled = polled or broker()
        self.rates.observe_offsets([polled], self.now_s)
        self.rates.observe_groups(groups, self.now_s)
        is_zero = self.rates.is_zero(polled, statistic)
        self.rates.observe_zeros(
            polled.addr, [] if is_zero else [statistic], [statistic] if is_zero else [], self.now_s
        )
        return is_zero


def test_a_zero_stays_zero_while_nothing_moves() -> None:
    rounds = Rounds()
    assert not rounds.round(0)
    # A message just before the first report may be in the next sample of the broker.
    assert not rounds.round(SETTLED_S - 1)
    assert not rounds.round(1)
    assert [rounds.round(after_s) for after_s in (1, 1_000)] == [True, True]


def test_a_zero_ends_with_the_first_movement_and_has_to_settle_again() -> None:
    rounds = Rounds()
    rounds.round(0)
    rounds.round(SETTLED_S)
    assert rounds.round(1)
    assert not rounds.round(1, broker(end=10))
    assert not rounds.round(SETTLED_S - 1, broker(end=10))
    assert not rounds.round(1, broker(end=10))
    assert rounds.round(1, broker(end=10))


def test_topics_of_the_broker_are_always_requested() -> None:
    rounds, topic = Rounds(), "SCHEDULE_TOPIC_XXXX"
    statistic = ("TOPIC_PUT_NUMS", topic)
    assert not any(rounds.round(SETTLED_S, broker(topic=topic), statistic=statistic) for _ in range(4))


def test_a_group_without_clients_whose_offsets_do_not_move_receives_nothing() -> None:
    rounds = Rounds()
    assert [rounds.round(SETTLED_S, statistic=GET) for _ in range(3)] == [False, False, True]
    assert not rounds.round(1, broker(offset=6), statistic=GET)


@pytest.mark.parametrize("groups", [ONLINE, {"G": ONLINE["G"]._replace(is_broadcasting=True)}, {}])
def test_a_group_with_clients_is_always_requested(groups: dict[str, GroupState]) -> None:
    """It may receive messages without committing: a broadcasting group, a consumer that is stuck, or one that seeks."""
    rounds = Rounds()
    assert not any(rounds.round(SETTLED_S, groups=groups, statistic=GET) for _ in range(4))


def test_a_group_that_was_online_has_to_settle_again() -> None:
    rounds = Rounds()
    for _ in range(3):
        rounds.round(SETTLED_S, statistic=GET)
    assert not rounds.round(1, groups=ONLINE, statistic=GET)
    assert not rounds.round(1, statistic=GET)
    assert not rounds.round(SETTLED_S, statistic=GET)
    assert rounds.round(1, statistic=GET)


def test_groups_at_a_slave_are_compared_by_the_offsets_of_its_master() -> None:
    rounds = Rounds()
    slave = broker(broker_id=1)
    for offset, is_zero in ((5, False), (5, False), (5, True), (6, False)):
        rounds.now_s += SETTLED_S
        rounds.rates.observe_offsets([broker(offset=offset), slave], rounds.now_s)
        rounds.rates.observe_groups(OFFLINE, rounds.now_s)
        assert rounds.rates.is_zero(slave, GET) is is_zero
        rounds.rates.observe_zeros(slave.addr, [GET], [], rounds.now_s)


def test_a_slave_whose_master_does_not_respond_is_always_requested() -> None:
    rounds = Rounds()
    slave = broker(broker_id=1)
    assert not any(rounds.round(SETTLED_S, slave, statistic=GET) for _ in range(4))


def test_brokers_of_version_5_may_have_clients_at_a_proxy() -> None:
    rounds = Rounds()
    assert not any(rounds.round(SETTLED_S, broker(version=470), statistic=GET) for _ in range(4))
    assert rounds.round(SETTLED_S, broker(version=470)) or rounds.round(SETTLED_S, broker(version=470))


def test_a_rate_that_was_not_zero_is_requested_again() -> None:
    rounds = Rounds()
    rounds.rates.observe_offsets([broker()], 0)
    rounds.rates.observe_zeros("b:0", [], [], 1_000)
    assert not rounds.rates.is_zero(broker(), PUT)
