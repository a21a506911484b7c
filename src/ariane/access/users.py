"""Users of ACL 2.0 with their policies, the changes that requests make to them, and their file.

[AuthenticationMetadataManagerImpl, AuthorizationMetadataManagerImpl]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import NamedTuple

import msgspec

from ariane.access.policies import POLICY_TYPES, Rule, choice, normalized_entry, parse_rules
from ariane.errors import ConfigError, ReplyError
from ariane.protocol.codes import ResponseCode
from ariane.protocol.requests.users import (
    ENTRIES_MAX,
    NAME_MAX,
    PASSWORD_MAX,
    AclInfo,
    PolicyEntryInfo,
    PolicyInfo,
    UserInfo,
)
from ariane.store.disk.files import Disk, read_whole, write_atomic

USERS_MAX = 10_000
FILE_BYTES_MAX = 16 * 1024 * 1024
USER_TYPES = ("Super", "Normal")
USER_STATES = ("enable", "disable")
SUBJECT = "User:"


class User(msgspec.Struct, frozen=True, rename="camel"):
    """A user as it is stored."""

    username: str
    password: str
    user_type: str = "Normal"
    user_status: str = "enable"
    policies: tuple[PolicyInfo, ...] = ()

    def __repr__(self) -> str:
        return f"User({self.username!r}, ...)"

    @property
    def is_super(self) -> bool:
        """Whether the user may do everything."""
        return self.user_type == "Super"

    @property
    def is_enabled(self) -> bool:
        return self.user_status == "enable"

    @property
    def info(self) -> UserInfo:
        """The user as responses show it, without the password."""
        return UserInfo(self.username, None, self.user_type, self.user_status)

    @property
    def acl(self) -> AclInfo:
        """The policies as responses show them."""
        return AclInfo(SUBJECT + self.username, self.policies)


class UserAccount(NamedTuple):
    """A user with its parsed policies."""

    user: User
    rules: tuple[Rule, ...]

    @property
    def secret_key(self) -> str:
        return self.user.password


Users = Mapping[str, User]


def accounts(users: Users) -> dict[str, UserAccount]:
    """Return the accounts by their names."""
    return {name: UserAccount(user, parse_rules(user.policies)) for name, user in users.items()}


def checked_users(users: Iterable[User]) -> dict[str, User]:
    """Return the users of a file by their names.

    Raises:
        ConfigError: a value is invalid. The message shows no password.
    """
    table: dict[str, User] = {}
    for user in users:
        if user.username in table:
            raise ConfigError("username", user.username, "two users have this name")
        table[user.username] = _checked(user)
    return table


# --- changes: each returns a new table ---


def create_user(users: Users, name: str, info: UserInfo, *, by_super: bool) -> dict[str, User]:
    """Return the users and a new one.

    Raises:
        ConfigError: a value is invalid or missing, or there are too many users.
        ReplyError: the user exists, or only a Super user may create it.
    """
    if name in users:
        raise _refused("The user is existed")
    if len(users) >= USERS_MAX:
        raise ConfigError("username", name, f"there are {USERS_MAX} users, and a server has no more")
    user = _changed(User(name, info.password or ""), info)
    if user.is_super and not by_super:
        raise ReplyError(ResponseCode.SYSTEM_ERROR, "The super user can only be create by super user")
    return {**users, name: user}


def update_user(users: Users, name: str, info: UserInfo, *, by_super: bool) -> dict[str, User]:
    """Return the users, one of them with the members of `info` that are not empty.

    Raises:
        ConfigError: a value is invalid.
        ReplyError: the user does not exist, or only a Super user may change it.
    """
    old = users.get(name)
    if old is None:
        raise _refused("The user is not exist")
    user = _changed(old, info)
    if (old.is_super or user.is_super) and not by_super:
        raise _refused("The super user can only be update by super user")
    return {**users, name: user}


def delete_user(users: Users, name: str, *, by_super: bool) -> dict[str, User]:
    """Return the users without one, and without its policies.

    Raises:
        ReplyError: only a Super user may delete it.
    """
    if name in users and users[name].is_super and not by_super:
        raise _refused("The super user can only be update by super user")
    return {other: user for other, user in users.items() if other != name}


def put_policies(users: Users, subject: str, policies: Sequence[PolicyInfo]) -> dict[str, User]:
    """Return the users, one of them with more entries: those of the same resource are replaced, others appended.

    Raises:
        ConfigError: an entry is invalid, or there are too many.
        ReplyError: the user does not exist, or the entries are missing.
    """
    if not policies or not all(policy.entries for policy in policies):
        raise _refused("The policy entries is empty.")
    user = subject_of(users, subject)
    return {**users, user.username: msgspec.structs.replace(user, policies=_merged(user.policies, policies))}


def delete_policies(users: Users, subject: str, policy_type: str | None, resource: str | None) -> dict[str, User]:
    """Return the users, one of them without policies, or without the entry of a resource.

    Raises:
        ConfigError: there is no such type of policies.
        ReplyError: the user does not exist, or has no policies.
    """
    user = subject_of(users, subject)
    if not user.policies:
        raise _refused("The acl is not exist.")
    rest: tuple[PolicyInfo, ...] = ()
    if resource:
        kind = choice("policyType", policy_type or "Custom", POLICY_TYPES)
        without = (
            msgspec.structs.replace(
                policy, entries=tuple(entry for entry in policy.entries or () if entry.resource != resource)
            )
            if policy.policy_type == kind
            else policy
            for policy in user.policies
        )
        rest = tuple(policy for policy in without if policy.entries)
    return {**users, user.username: msgspec.structs.replace(user, policies=rest)}


def subject_of(users: Users, subject: str) -> User:
    """Return the user of a subject, User:name.

    Raises:
        ReplyError: there is none.
    """
    kind, _, name = subject.partition(":")
    if kind.lower() != "user" or name not in users:
        raise _refused(f"The subject of {subject} is not exist.")
    return users[name]


# --- reads ---


def find_users(users: Users, part: str | None) -> list[UserInfo]:
    """Return the users whose names contain `part`."""
    return [user.info for name, user in sorted(users.items()) if (part or "") in name]


def find_acls(users: Users, subject_part: str | None, resource_part: str | None) -> list[AclInfo]:
    """Return the policies of the subjects that contain `subject_part`, with the entries whose resources contain `resource_part`."""
    acls = []
    for _, user in sorted(users.items()):
        if (subject_part or "") not in SUBJECT + user.username:
            continue
        policies = (
            PolicyInfo(
                policy.policy_type,
                tuple(entry for entry in policy.entries or () if (resource_part or "") in (entry.resource or "")),
            )
            for policy in user.policies
        )
        if shown := tuple(policy for policy in policies if policy.entries):
            acls.append(AclInfo(SUBJECT + user.username, shown))
    return acls


def _changed(user: User, info: UserInfo) -> User:
    return _checked(
        msgspec.structs.replace(
            user,
            password=info.password or user.password,
            user_type=info.user_type or user.user_type,
            user_status=info.user_status or user.user_status,
        )
    )


def _checked(user: User) -> User:
    name = user.username
    if not 1 <= len(name) <= NAME_MAX or not name.isprintable() or any(sign in name for sign in " ,:"):
        expected = f"expected 1 to {NAME_MAX} printable characters without space, comma and colon"
        raise ConfigError("username", name[:NAME_MAX], expected)
    if not 1 <= len(user.password) <= PASSWORD_MAX:
        raise ConfigError("password", "", f"{name} has {len(user.password)} characters: expected 1 to {PASSWORD_MAX}")
    return msgspec.structs.replace(
        user,
        user_type=choice("userType", user.user_type, USER_TYPES),
        user_status=choice("userStatus", user.user_status, USER_STATES),
        policies=_merged((), user.policies),
    )


def _merged(policies: Sequence[PolicyInfo], changes: Sequence[PolicyInfo]) -> tuple[PolicyInfo, ...]:
    """Return normalized policies with the entries of `changes`."""
    by_type: dict[str, dict[str, PolicyEntryInfo]] = {}
    for policy in (*policies, *changes):
        entries = by_type.setdefault(choice("policyType", policy.policy_type or "Custom", POLICY_TYPES), {})
        for entry in map(normalized_entry, policy.entries or ()):
            entries[entry.resource or ""] = entry
        if len(entries) > ENTRIES_MAX:
            raise ConfigError("policies", f"{len(entries)} entries", f"expected at most {ENTRIES_MAX}")
    return tuple(PolicyInfo(name, tuple(entries.values())) for name, entries in by_type.items())


def _refused(text: str) -> ReplyError:
    return ReplyError(ResponseCode.NO_PERMISSION, text)


# --- the file ---


class _UserFile(msgspec.Struct, frozen=True):
    users: tuple[User, ...] = ()


def load_users(disk: Disk, path: str) -> dict[str, User]:
    """Return the users of a file; none without one.

    Raises:
        ConfigError: the file cannot be read, or is invalid. The message shows no password.
    """
    try:
        data = read_whole(disk, path)
        return checked_users(msgspec.json.decode(data, type=_UserFile).users) if data is not None else {}
    except OSError as error:
        raise ConfigError("authConfigPath", path, f"cannot read the file: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError):
        # The error's own text may quote the file.
        raise ConfigError("authConfigPath", path, "the file is damaged: restore a copy, or remove it") from None


def save_users(disk: Disk, path: str, users: Users) -> None:
    """Replace the file of users, readable by its owner only; returns when it is on the disk.

    Raises:
        ConfigError: the file would be too large.
        OSError: it cannot be written.
    """
    data = msgspec.json.encode(_UserFile(tuple(users.values())))
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError("authConfigPath", path, f"the file would have more than {FILE_BYTES_MAX} bytes")
    for parent in disk.make_dirs(str(PurePath(path).parent)):
        disk.fsync_dir(parent)
    write_atomic(disk, path, data, is_private=True)
