"""Accounts, their permissions, and the decision about one request. Pure. [PlainPermissionManager]

    global allowlist ─▶ account ─▶ its allowlist ─▶ signature ─▶ trace topic ─▶ admin code ─▶ each topic and group
         accept         else deny      accept         else deny      accept       else deny     permitted, else deny
                        user, enabled ────────────▶ signature ─▶ Super user ───────────────▶ policies for each resource

What each code needs is in a table of the server. A request without an access key is that of the account which names the client's
certificate: TLS has verified it, so a signature would add nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ariane.access import ip_allowlist
from ariane.access.ip_allowlist import Pattern
from ariane.access.policies import find_denial
from ariane.access.request_needs import (
    CLUSTER,
    Action,
    Permission,
    RecordReader,
    RequestNeeds,
    RequiredPermission,
    required_permissions,
)
from ariane.access.users import UserAccount
from ariane.audit.records import RequestAccount
from ariane.errors import ConfigError
from ariane.model.topic import RETRY_PREFIX, TRACE_TOPIC, DataVersion
from ariane.protocol.secret_masks import is_mask
from ariane.protocol.signing import ACCESS_KEY, verify

KEY_CHARACTERS_MIN = 7
ACCOUNTS_MAX = 10_000
SHOWN_MAX = 300  # characters of a name in a message; longer than any valid name


PERMISSIONS = {
    "DENY": Permission.DENY,
    "PUB": Permission.PUB,
    "SUB": Permission.SUB,
    "PUB|SUB": Permission.PUB | Permission.SUB,
    "SUB|PUB": Permission.PUB | Permission.SUB,
}

# --- the file ---


class AccountEntry(msgspec.Struct, frozen=True, rename="camel"):
    """One entry of `accounts` in plain_acl.yml."""

    access_key: str  # if several entries have it, the first counts
    secret_key: str  # in clear text, because signatures are computed with it
    secret_key_file: str | None = None  # where the secret key was read, if it is not in this file
    secret_key_variable: str | None = None  # the same for an environment variable
    white_remote_address: str | None = None  # requests from these addresses are not checked; a signature is not needed
    client_certificate: str | None = None  # not in 4.9.4: a name of the certificate of clients that need no signature
    admin: bool = False  # may use administrative requests, and all topics and groups
    default_topic_perm: str | None = None  # for topics without an entry; None: DENY
    default_group_perm: str | None = None  # for groups without an entry; None: DENY
    topic_perms: tuple[str, ...] | None = None  # entries `topic=permission`
    group_perms: tuple[str, ...] | None = None  # entries `group=permission`
    brokers: tuple[str, ...] | None = None  # not in 4.9.4: names that it registers and replicates; `*`: all

    def __repr__(self) -> str:
        return f"AccountEntry({self.access_key!r}, ...)"


class AclFile(msgspec.Struct, frozen=True, rename="camel"):
    """A plain_acl.yml. The broker maintains `data_version`, a list with one element."""

    global_white_remote_addresses: tuple[str, ...] | None = None
    accounts: tuple[AccountEntry, ...] | None = None
    data_version: tuple[DataVersion, ...] | None = None

    @property
    def version(self) -> DataVersion:
        return self.data_version[0] if self.data_version else DataVersion()


def parse_acl_file(path: str, document: Any) -> AclFile:
    """Return the checked contents of a YAML file.

    Raises:
        ConfigError: an entry is invalid. The message names it and never shows a secret.
    """
    try:
        file = msgspec.convert(_keys_as_texts(document or {}), AclFile)
    except msgspec.ValidationError as error:
        raise ConfigError(
            "aclEnable", path, f"{error}; keys and addresses have to be texts: put them in quotes"
        ) from None
    for entry in file.accounts or ():
        parse_account(path, entry)
    for addresses in file.global_white_remote_addresses or ():
        ip_allowlist.parse_patterns(addresses)
    return file


def _keys_as_texts(document: Any) -> Any:
    """Return the document with access keys and secret keys as texts: YAML reads `secretKey: 12345678` as a number."""
    if not isinstance(document, dict) or not isinstance(document.get("accounts"), list):
        return document

    def text(value: Any) -> Any:
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else value

    names = ("accessKey", "secretKey")
    accounts = [
        {key: text(value) if key in names else value for key, value in entry.items()}
        if isinstance(entry, dict)
        else entry
        for entry in document["accounts"]
    ]
    return {**document, "accounts": accounts}


# --- accounts ---


class Account(NamedTuple):
    """An account with its parsed permissions."""

    entry: AccountEntry
    white: tuple[Pattern, ...]
    default_topic: Permission
    default_group: Permission
    resources: Mapping[str, Permission]  # groups by their retry topic

    @property
    def secret_key(self) -> str:
        return self.entry.secret_key

    def has_permission(self, need: RequiredPermission) -> bool:
        """Return whether the account has a permission, explicitly or by default."""
        if need.right is Permission.REGISTER:
            return not {need.resource, "*"}.isdisjoint(self.entry.brokers or ())
        if not need.right:
            return True
        default = self.default_group if need.resource.startswith(RETRY_PREFIX) else self.default_topic
        return bool(self.resources.get(need.resource, default) & need.right)


def parse_account(path: str, entry: AccountEntry) -> Account:
    """Return the account of an entry.

    Raises:
        ConfigError: the entry is invalid.
    """
    for kind, value in (("accessKey", entry.access_key), ("secretKey", entry.secret_key)):
        if len(value) < KEY_CHARACTERS_MIN:
            fix = f"{path}: the {kind} has {len(value)} characters: expected at least {KEY_CHARACTERS_MIN}"
            raise ConfigError("accounts", entry.access_key, fix)
    if is_mask(entry.secret_key):
        # Copied from the output of a tool; anyone can guess it.
        raise ConfigError("accounts", entry.access_key, f"{path}: the secretKey is a mask: expected the key itself")
    resources = {}
    for prefix, perms in (("", entry.topic_perms), (RETRY_PREFIX, entry.group_perms)):
        for text in perms or ():
            name, equals, right = text.partition("=")
            if not name.strip() or not equals or right.strip() not in PERMISSIONS:
                fix = f"{path}: invalid permission {text!r}: expected name= and one of {', '.join(PERMISSIONS)}"
                raise ConfigError("accounts", entry.access_key, fix)
            resources[prefix + name.strip()] = PERMISSIONS[right.strip()]
    return Account(
        entry,
        ip_allowlist.parse_patterns(entry.white_remote_address or ""),
        PERMISSIONS.get((entry.default_topic_perm or "").strip(), Permission.DENY),
        PERMISSIONS.get((entry.default_group_perm or "").strip(), Permission.DENY),
        resources,
    )


# --- the decision ---

WHOLE_SERVER = RequiredPermission(CLUSTER, Permission.DENY, Action.UPDATE)


class UserRules(NamedTuple):
    """The users of ACL 2.0, and how their requests are checked."""

    accounts: Mapping[str, UserAccount]
    cluster: str  # name of the resource Cluster
    is_authorized: bool  # whether policies are checked; otherwise users may do everything


class Acl:
    """The rules of all files and users.

    Of several accounts with one access key, the first counts, and those of the files come before users.
    """

    def __init__(
        self,
        files: Sequence[tuple[str, AclFile]],
        needs: Mapping[int, RequestNeeds],
        users: UserRules | None = None,
    ) -> None:
        self._needs = needs  # of each request code
        self._users = users
        self._accounts: dict[str, Account] = {}
        self._by_certificate: dict[str, Account] = {}
        white: list[Pattern] = []
        for path, file in files:
            for entry in file.accounts or ():
                account = self._accounts.setdefault(entry.access_key, parse_account(path, entry))
                if account.entry.client_certificate:
                    self._by_certificate.setdefault(account.entry.client_certificate, account)
            for addresses in file.global_white_remote_addresses or ():
                white += ip_allowlist.parse_patterns(addresses)
        if len(self._accounts) > ACCOUNTS_MAX:
            raise ConfigError("accounts", f"{len(self._accounts)} accounts", f"expected at most {ACCOUNTS_MAX}")
        self._white = tuple(white)

    def secret_keys(self) -> dict[str, str]:
        """Return the secret keys of all accounts by access key."""
        users = self._users.accounts if self._users is not None else {}
        keys = {name: account.secret_key for name, account in users.items()}
        return keys | {name: account.secret_key for name, account in self._accounts.items()}

    def is_open_to(self, ip: str) -> bool:
        """Return whether requests from an address are not checked."""
        return ip_allowlist.matches(self._white, ip)

    def denial_reason(
        self,
        code: int,
        fields: Mapping[str, str],
        body: bytes,
        ip: str,
        read_record: RecordReader,
        names: Sequence[str] = (),
        *,
        is_verified: bool = False,
    ) -> str | None:
        """Return why a request is denied, None if it is permitted.

        Args:
            code: of the request.
            fields: its extFields.
            body: its body.
            ip: address of the client.
            read_record: returns messages that requests refer to.
            names: of the client's verified certificate.
            is_verified: whether the signature was found to be right; `fields` and `body` may be those that the decision needs.
        """
        if self.is_open_to(ip):
            return None
        access_key = fields.get(ACCESS_KEY)
        if access_key:
            account = self.account(access_key)
            if account is None:
                return f"No acl config for {_shown(access_key)}"
            if isinstance(account, Account) and ip_allowlist.matches(account.white, ip):
                return None
            if isinstance(account, UserAccount) and not account.user.is_enabled:
                return f"User:{access_key} is disabled."
            if not is_verified and not verify(account.secret_key, fields, body):
                return f"Check signature failed for accessKey={access_key}"
        else:
            account = next((self._by_certificate[name] for name in names if name in self._by_certificate), None)
            if account is None:
                return "No accessKey is configured"
        required = list(required_permissions(self._needs[code], fields, body, read_record))
        return self.denial(account, code, required, ip)

    def broker_denial(self, broker: str, fields: Mapping[str, str], body: bytes) -> str | None:
        """Return why signed fields are not from an account that may replicate a broker, None if they are.

        Allow lists prove nothing.
        """
        access_key = fields.get(ACCESS_KEY, "")
        account = self._accounts.get(access_key)
        if account is None or not verify(account.entry.secret_key, fields, body):
            return f"no valid signature of an account, accessKey={_shown(access_key)}"
        need = RequiredPermission(broker, Permission.REGISTER)
        if (account.entry.admin and not account.resources) or account.has_permission(need):
            return None
        return f"the account {access_key} does not have {need}"

    def identity(
        self, fields: Mapping[str, str], body: bytes, names: Sequence[str], *, is_verified: bool = False
    ) -> RequestAccount:
        """Return the account of a request, and how it is proven. The global allowlist proves nothing.

        Args:
            fields: extFields of the request.
            body: Its body.
            names: Names of the client's verified certificate.
            is_verified: Whether the sender was found to be the account, by its signature or the account's own allowlist.
        """
        access_key = fields.get(ACCESS_KEY)
        if not access_key:
            certified = next((self._by_certificate[name] for name in names if name in self._by_certificate), None)
            return (
                RequestAccount("") if certified is None else RequestAccount(certified.entry.access_key, "certificate")
            )
        account = self.account(access_key)
        is_proven = account is not None and (is_verified or verify(account.secret_key, fields, body))
        return RequestAccount(access_key, "signature" if is_proven else "")

    def account(self, access_key: str) -> Account | UserAccount | None:
        """Return an account by its name."""
        account = self._accounts.get(access_key)
        return account if account is not None or self._users is None else self._users.accounts.get(access_key)

    def denial(
        self, account: Account | UserAccount, code: int, required: Sequence[RequiredPermission], ip: str
    ) -> str | None:
        """Return why an authenticated account may not make a request, None if it may.

        Args:
            account: The sender.
            code: Code of the request.
            required: Permissions for what the request names (`required_permissions`).
            ip: Address of the sender.
        """
        is_admins = self._needs[code].is_admin
        if isinstance(account, UserAccount):
            return self._denial_of_user(account, required or ([WHOLE_SERVER] if is_admins else []), ip)
        if RequiredPermission(TRACE_TOPIC, Permission.PUB) in required:
            return None
        if is_admins and not account.entry.admin:
            return f"Need admin permission for request code={code}, but accessKey={account.entry.access_key} is not"
        if account.entry.admin and not account.resources:
            return None
        refused = next((need for need in required if not account.has_permission(need)), None)
        return None if refused is None else f"No default permission for {_shown(str(refused))}"

    def _denial_of_user(self, account: UserAccount, required: Sequence[RequiredPermission], ip: str) -> str | None:
        assert self._users is not None
        if account.user.is_super or not self._users.is_authorized:
            return None
        for need in required:
            name = self._users.cluster if need.kind == "Cluster" else need.resource.removeprefix(RETRY_PREFIX)
            if reason := find_denial(account.rules, need, name, ip):
                resource = _shown(f"{need.kind}:{name or '*'}")
                return f"User:{account.user.username} has no permission to access {resource} from {ip}, {reason}"
        return None


def _shown(text: str) -> str:
    """Return a text of a peer in a form that fits into one line of a log."""
    return text if len(text) <= SHOWN_MAX and text.isprintable() else repr(text[:SHOWN_MAX])
