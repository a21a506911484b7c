"""Checks of consumer groups: subscriptions, backlogs and dead letters. Pure.

A lag alone is normal: traffic comes in bursts, and groups restart. A backlog is a finding if it is

    old        the oldest message has been pending for OLD_MS
    growing    the oldest message has been pending for LATE_MS, and less than half of the messages that arrive is consumed
    blocked    the oldest message has been pending for LATE_MS, and a client does not consume queues that it owns

Clients commit their offsets every 5 s. In GROWTH_S, at least half of what they consume is committed, whenever they commit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ariane.cluster.diagnosis.findings import (
    ERROR,
    WARNING,
    Backlog,
    ClusterSnapshot,
    ConsumerGroupState,
    DeadLetters,
    Finding,
)
from ariane.model.quantities import count_text, duration_text

OLD_MS = 600_000
LATE_MS = 60_000  # a burst is consumed earlier
GROWTH_S = 10.0  # between two measurements of a lag
RECENT_MS = 3_600_000  # older dead letters do not arrive any more
NAMES_SHOWN = 10  # of offline groups


def check_subscriptions(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Find groups whose members subscribe to different topics or tags: brokers know only the newest, so messages are lost."""
    for group, state in (snapshot.groups or {}).items():
        variants: dict[tuple[tuple[str, str], ...], list[str]] = defaultdict(list)
        for client in state.members:
            if client.subscriptions is not None:
                variants[tuple(sorted(client.subscriptions.items()))].append(client.client_id)
        if len(variants) > 1:
            shown = "; ".join(
                f"{', '.join(ids)}: {', '.join(f'{topic} {expression}' for topic, expression in variant) or 'nothing'}"
                for variant, ids in variants.items()
            )
            fix = "give all members of the group the same topics and tags, or use one group per subscription"
            yield Finding(ERROR, "subscriptions", group, f"members differ: {shown}", fix)


def check_backlogs(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Find groups with blocked queues, and groups whose pending messages are old or grow. Offline groups are one finding."""
    offline: dict[str, Backlog] = {}
    for group, state in (snapshot.groups or {}).items():
        backlog = state.backlog
        if backlog is None or not is_late(backlog):
            continue
        if state.clients == 0:
            if is_old(backlog):  # consumers that restart are back earlier
                offline[group] = backlog
        elif state.blocked:
            yield _blocked(group, state, backlog)
        elif is_growing(backlog):
            problem = f"{_pending(backlog)}; {backlog.growth:,} more than {GROWTH_S:.0f} s before"
            fix = f"add consumers, or make their listeners faster; ariane group lag {group} shows the queues"
            yield Finding(WARNING, "backlog", group, problem, fix)
        elif is_old(backlog):
            fix = f"find the queues with ariane group lag {group}; add consumers, or make their listeners faster"
            yield Finding(WARNING, "backlog", group, _pending(backlog), fix)
    if offline:
        oldest = max(offline, key=lambda group: offline[group].oldest_ms or 0)
        names = sorted(offline)
        more = f" and {len(names) - NAMES_SHOWN} more (ariane group list)" if len(names) > NAMES_SHOWN else ""
        problem = f"no client is connected; most of all {oldest}: {_pending(offline[oldest])}"
        fix = "start the consumers; delete groups that are no longer used (ariane group delete)"
        yield Finding(WARNING, "backlog", ", ".join(names[:NAMES_SHOWN]) + more, problem, fix)


def is_old(backlog: Backlog) -> bool:
    """Return whether messages have been pending for too long."""
    return backlog.oldest_ms is not None and backlog.oldest_ms >= OLD_MS


def is_late(backlog: Backlog) -> bool:
    """Return whether messages have been pending for longer than a burst."""
    return backlog.oldest_ms is not None and backlog.oldest_ms >= LATE_MS


def is_growing(backlog: Backlog) -> bool:
    """Return whether less than half of the messages that arrived between two measurements was consumed."""
    return backlog.growth is not None and backlog.growth > backlog.arrived / 2


def check_dead_letters(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Find groups that gave up messages in the last hour."""
    for group, state in (snapshot.groups or {}).items():
        letters = state.dead_letters
        if letters is None or letters.last_ms is None or letters.last_ms > RECENT_MS:
            continue
        fix = f"see why with ariane dead-letter list {group}; once it is mended, ariane dead-letter resend {group}"
        yield Finding(WARNING, "dead letters", group, _dead_letters(letters), fix)


def _blocked(group: str, state: ConsumerGroupState, backlog: Backlog) -> Finding:
    clients = sorted({queue.client_id for queue in state.blocked})
    reasons = sorted({queue.reason for queue in state.blocked})
    longest_ms = max((queue.since_ms for queue in state.blocked if queue.since_ms is not None), default=None)
    since = "" if longest_ms is None else f" for {duration_text(longest_ms)}"
    queues = f"{count_text(len(state.blocked), 'queue')} blocked{since} ({', '.join(reasons)}) in {', '.join(clients)}"
    problem = f"{queues}; {_pending(backlog)}"
    fix = f"look for the stuck listener: mqadmin consumerStatus -g {group} -i {clients[0]} -s; restart the client"
    return Finding(WARNING, "backlog", group, problem, fix)


def _pending(backlog: Backlog) -> str:
    number = f"{'at least ' if backlog.is_partial else ''}{count_text(backlog.pending, 'message')} pending"
    return number if backlog.oldest_ms is None else f"{number}, the oldest for {duration_text(backlog.oldest_ms)}"


def _dead_letters(letters: DeadLetters) -> str:
    rate = "" if letters.last_hour is None else f"{letters.last_hour:,} in the last hour, "
    stored = "" if letters.stored is None else f"; {count_text(letters.stored, 'dead letter')} stored"
    return f"{rate}the last one {duration_text(letters.last_ms or 0)} ago{stored}"
