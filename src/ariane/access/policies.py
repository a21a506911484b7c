"""Policies of ACL 2.0: which entry decides about an action on a resource. Pure. [AclAuthorizationHandler, PolicyEntry, Resource]

    entries whose resource, action and source address match ─▶ the first in this order decides; none: denied

    1. type Custom before type Default
    2. Topic:orders (literal), Topic:ord* (the longer prefix first), Topic:*, then * (every resource)
    3. Deny before Allow

5.3.3 compares wrongly: shorter prefixes come first, and literals by their place in the list. The order above is that of its
documentation and of later releases.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import NamedTuple

from ariane.access.request_needs import Action, RequiredPermission
from ariane.errors import ConfigError
from ariane.protocol.requests.users import PolicyEntryInfo, PolicyInfo

KINDS = ("Cluster", "Namespace", "Topic", "Group")
ACTIONS = {
    "Pub": Action.PUB,
    "Sub": Action.SUB,
    "Create": Action.CREATE,
    "Update": Action.UPDATE,
    "Delete": Action.DELETE,
    "Get": Action.GET,
    "List": Action.LIST,
    "All": ~Action(0),
}
DECISIONS = ("Allow", "Deny")
POLICY_TYPES = ("Custom", "Default")


class Pattern(enum.IntEnum):
    """How an entry names its resource, in the order in which matching entries decide."""

    LITERAL = 0
    PREFIX = 1
    KIND = 2  # every resource of a kind
    ANY = 3


class Rule(NamedTuple):
    """An entry, parsed."""

    pattern: Pattern
    kind: str  # empty with Pattern.ANY
    name: str  # empty with Pattern.KIND and Pattern.ANY
    actions: Action
    networks: tuple[IPv4Network | IPv6Network, ...]  # source addresses; empty: any
    is_allowed: bool

    def matches(self, actions: Action, kind: str, name: str, ip: str) -> bool:
        """Return whether the rule decides about one of the actions on a resource, from an address."""
        if not self.actions & actions or (self.pattern is not Pattern.ANY and kind != self.kind):
            return False
        if self.pattern is Pattern.LITERAL and name != self.name:
            return False
        if self.pattern is Pattern.PREFIX and not name.startswith(self.name):
            return False
        return not self.networks or any(_address(ip) in network for network in self.networks)


def parse_rules(policies: Iterable[PolicyInfo]) -> tuple[Rule, ...]:
    """Return the rules of normalized policies, in the order in which they decide."""
    keyed = [
        ((policy.policy_type == "Default", rule.pattern, -len(rule.name), rule.is_allowed), rule)
        for policy in policies
        for entry in policy.entries or ()
        for rule in (_rule(entry),)
    ]
    return tuple(rule for _, rule in sorted(keyed, key=lambda item: item[0]))


def find_denial(rules: Sequence[Rule], need: RequiredPermission, name: str, ip: str) -> str | None:
    """Return why the rules deny `need`, None if they allow it. `name` is that of the resource."""
    actions, kind = need.any_of, need.kind
    decisive = next((rule for rule in rules if rule.matches(actions, kind, name, ip)), None)
    if decisive is None:
        return "no matched policies."
    return None if decisive.is_allowed else "the decision is deny."


def normalized_entry(entry: PolicyEntryInfo) -> PolicyEntryInfo:
    """Return an entry with names as they are stored and returned.

    Raises:
        ConfigError: the entry is invalid; says which part, and what is expected.
    """
    resource = (entry.resource or "").strip()
    kind, colon, name = resource.partition(":")
    kinds = {other.lower(): other for other in KINDS}
    if resource != "*":
        if not colon or not name or kind.lower() not in kinds or "*" in name[:-1] or not resource.isprintable():
            expected = f"expected *, or KIND:NAME, KIND:PREFIX* or KIND:* with a KIND of {', '.join(KINDS)}"
            raise ConfigError("resource", resource, expected)
        resource = f"{kinds[kind.lower()]}:{name}"
    if not entry.actions:
        raise ConfigError("actions", "", f"expected one or more of {', '.join(ACTIONS)}")
    actions = tuple(choice("actions", action, tuple(ACTIONS)) for action in entry.actions)
    for address in entry.source_ips or ():
        try:
            ip_network(address, strict=False)
        except ValueError:
            raise ConfigError("sourceIps", address, "expected an IP address or a network like 10.1.0.0/16") from None
    return PolicyEntryInfo(
        resource, actions, entry.source_ips or None, choice("decision", entry.decision or "", DECISIONS)
    )


def choice(key: str, text: str, choices: Sequence[str]) -> str:
    """Return the one of `choices` that a text names in whatever case.

    Raises:
        ConfigError: it names none.
    """
    by_name = {name.lower(): name for name in choices}
    if text.strip().lower() not in by_name:
        raise ConfigError(key, text, f"expected {', '.join(choices)}")
    return by_name[text.strip().lower()]


def _rule(entry: PolicyEntryInfo) -> Rule:
    kind, _, name = (entry.resource or "").partition(":")
    if kind == "*":
        pattern, kind = Pattern.ANY, ""
    elif name == "*":
        pattern, name = Pattern.KIND, ""
    elif name.endswith("*"):
        pattern, name = Pattern.PREFIX, name[:-1]
    else:
        pattern = Pattern.LITERAL
    actions = Action(0)
    for action in entry.actions or ():
        actions |= ACTIONS[action]
    networks = tuple(ip_network(address, strict=False) for address in entry.source_ips or ())
    return Rule(pattern, kind, name, actions, networks, entry.decision == "Allow")


_address = lru_cache(maxsize=4096)(ip_address)
