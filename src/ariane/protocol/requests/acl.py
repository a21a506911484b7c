"""Accounts and their permissions: headers and bodies of 50–54 (reference remoting-protocol 12.5)."""

from __future__ import annotations

import msgspec


class UpdateAccount(msgspec.Struct, frozen=True, rename="camel"):
    """UPDATE_AND_CREATE_ACL_CONFIG (50). `topic_perms` and `group_perms` are lists joined by commas."""

    access_key: str  # identifies the account to create or change
    secret_key: str | None = None  # None keeps the stored one; a new account needs it
    white_remote_address: str | None = None  # address pattern whose requests are not checked; None keeps it
    admin: bool = False  # may use administrative requests; always overwritten, unlike absent members
    default_topic_perm: str | None = None  # DENY, PUB, SUB or PUB|SUB for topics without an entry
    default_group_perm: str | None = None  # the same for consumer groups
    topic_perms: str | None = None
    group_perms: str | None = None

    def __repr__(self) -> str:
        return f"UpdateAccount({self.access_key!r}, ...)"


class DeleteAccount(msgspec.Struct, frozen=True, rename="camel"):
    """DELETE_ACL_CONFIG (51)."""

    access_key: str


class UpdateWhiteAddresses(msgspec.Struct, frozen=True, rename="camel"):
    """UPDATE_GLOBAL_WHITE_ADDRS_CONFIG (53). An empty path means the default file."""

    global_white_addrs: str = ""
    acl_file_full_path: str = ""


class AclVersion(msgspec.Struct, frozen=True, rename="camel"):
    """Response to GET_BROKER_CLUSTER_ACL_INFO (52): JSON texts of the default file's version and of all files' versions."""

    version: str
    all_acl_file_version: str
    broker_name: str
    broker_addr: str
    cluster_name: str


class AccountBody(msgspec.Struct, frozen=True, rename="camel"):
    """One account in the response to 54."""

    access_key: str  # identifies the account
    admin: bool = False  # may use administrative requests
    default_group_perm: str | None = None  # DENY, PUB, SUB or PUB|SUB for groups without an entry
    default_topic_perm: str | None = None  # the same for topics
    group_perms: tuple[str, ...] | None = None  # entries `name=permission`
    secret_key: str = ""  # its mask (`secret_masks`); brokers of 4.9.4 return the key itself
    topic_perms: tuple[str, ...] | None = None  # entries `name=permission`
    white_remote_address: str | None = None  # address pattern whose requests are not checked

    def __repr__(self) -> str:
        return f"AccountBody({self.access_key!r}, ...)"


class AclConfig(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the response to GET_BROKER_CLUSTER_ACL_CONFIG (54)."""

    global_white_addrs: tuple[str, ...] = ()
    plain_access_configs: tuple[AccountBody, ...] = ()
