"""Which connection a new one displaces, and what that costs."""

from __future__ import annotations

from dataclasses import dataclass

from ariane.net.limits.connection_limits import ConnectionLimits, select_displaced

LIMITS = ConnectionLimits(total=6, per_address=4)


@dataclass(frozen=True, eq=False)
class Connection:
    ip: str
    number: int
    examined: list[int]
    is_answering: bool = False

    @property
    def is_identified(self) -> bool:
        self.examined.append(self.number)
        return self.is_answering


def test_a_crowded_address_loses_its_oldest_connection_that_is_not_identified() -> None:
    """One comparison is enough, however many are open: an address may connect a thousand times in one tick."""
    examined: list[int] = []
    others = [Connection("10.0.0.2", number, examined) for number in (0, 1)]
    same = [Connection("10.0.0.1", number, examined, is_answering=number == 2) for number in range(2, 7)]
    assert select_displaced(same[-1], [*others, *same], LIMITS) is same[1]
    assert examined == [2, 3]


def test_a_crowded_address_whose_requests_are_answered_loses_its_newest_connection() -> None:
    same = [Connection("10.0.0.1", number, [], is_answering=True) for number in range(5)]
    assert select_displaced(same[-1], same, LIMITS) is same[-1]


def test_a_full_port_displaces_a_connection_of_the_address_with_most() -> None:
    many = [Connection("10.0.0.1", number, []) for number in range(4)]
    few = [Connection(f"10.0.1.{number}", number, []) for number in range(3)]
    assert select_displaced(few[-1], [few[0], *many, *few[1:]], LIMITS) is many[0]
    assert select_displaced(few[0], [*many[:3], *few], LIMITS) is None
