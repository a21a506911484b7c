"""Accounts, made, changed and shown by tools (50–54). [AdminBrokerProcessor]

Without aclEnable all of them are answered with the reason; 4.9.4 leaves 52 and 54 without an answer.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from ariane.broker import ip_allowlist
from ariane.broker.access_control import AccessControl
from ariane.broker.acl import PERMISSIONS, AclFile
from ariane.broker.config import BrokerConfig
from ariane.errors import ConfigError, ProtocolError, ReplyError
from ariane.net.connection import Handler, Peer, Reply
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import fields, typed
from ariane.protocol.requests.acl import (
    AccountBody,
    AclConfig,
    AclVersion,
    DeleteAccount,
    UpdateAccount,
    UpdateWhiteAddresses,
)

log = logging.getLogger("ariane.broker.acl")

# What each code answers when it cannot do what it is asked for.
FAILED = {
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED,
    RequestCode.DELETE_ACL_CONFIG: ResponseCode.DELETE_ACL_CONFIG_FAILED,
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO: ResponseCode.SYSTEM_ERROR,
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED,
    RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: ResponseCode.SYSTEM_ERROR,
}
DISABLED = "access control is off at this broker: set aclEnable=true in broker.conf and start it again"


class AclAdminHandler(NamedTuple):
    """What these handlers need; `access` is None when access control is off."""

    config: BrokerConfig
    addr: str
    access: AccessControl | None


def handlers(parts: AclAdminHandler) -> dict[int, Handler]:
    access = parts.access
    if access is None:
        return {code: _refusing(failed) for code, failed in FAILED.items()}

    def version(command: Command, peer: Peer) -> Reply:
        return acl_version(parts, access)

    def show(command: Command, peer: Peer) -> Reply:
        return acl_config(access)

    return {
        RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: _editing(access, update_account),
        RequestCode.DELETE_ACL_CONFIG: _editing(access, delete_account),
        RequestCode.GET_BROKER_CLUSTER_ACL_INFO: version,
        RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: _editing(access, update_white_addresses),
        RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: show,
    }


def _refusing(code: ResponseCode) -> Handler:
    return lambda command, peer: Reply(code, remark=DISABLED)


def _editing(access: AccessControl, serve: Callable[[AccessControl, Command], Awaitable[str]]) -> Handler:
    async def edit(command: Command, peer: Peer) -> Reply:
        try:
            done = await serve(access, command)
        except (ConfigError, ProtocolError, OSError) as error:
            raise ReplyError(FAILED[RequestCode(command.code)], str(error)) from None
        log.warning("%s %s", peer.addr, done)
        return Reply()

    return edit


async def update_account(access: AccessControl, command: Command) -> str:
    """Make an account in the default file, or change one where it stands. Of an account that is there, what the request does
    not give stays; `admin` is always given."""
    request = typed(command, UpdateAccount)
    given = {
        "secretKey": request.secret_key,
        "whiteRemoteAddress": request.white_remote_address,
        "admin": request.admin,
        "defaultTopicPerm": _permission("defaultTopicPerm", request.default_topic_perm),
        "defaultGroupPerm": _permission("defaultGroupPerm", request.default_group_perm),
        "topicPerms": _list(request.topic_perms),
        "groupPerms": _list(request.group_perms),
    }

    def change(document: dict[str, Any]) -> None:
        known = _entry(document, request.access_key)
        if known is None:
            if not request.secret_key:
                raise ConfigError("secretKey", "", f"a new account needs one: give it for {request.access_key}")
            known = {"accessKey": request.access_key}
            document["accounts"] = [*(document.get("accounts") or []), known]
        known.update({key: value for key, value in given.items() if value is not None})

    await access.edit(lambda files: _file_of(files, request.access_key) or str(access.default), change)
    return f"changed the account {request.access_key}"


async def delete_account(access: AccessControl, command: Command) -> str:
    access_key = typed(command, DeleteAccount).access_key

    def change(document: dict[str, Any]) -> None:
        document["accounts"] = [one for one in document["accounts"] if str(one.get("accessKey")) != access_key]

    def choose(files: dict[str, AclFile]) -> str:
        path = _file_of(files, access_key)
        if path is None:
            raise ConfigError("accessKey", access_key, "there is no such account; getAclConfig lists all")
        return path

    await access.edit(choose, change)
    return f"deleted the account {access_key}"


async def update_white_addresses(access: AccessControl, command: Command) -> str:
    request = typed(command, UpdateWhiteAddresses)
    addresses = ip_allowlist.split_patterns(request.global_white_addrs)

    def choose(files: dict[str, AclFile]) -> str:
        path = request.acl_file_full_path.strip() or str(access.default)
        if path not in files:
            raise ConfigError("aclFileFullPath", path, f"it is none of this broker's files: {', '.join(files)}")
        return path

    def change(document: dict[str, Any]) -> None:
        document["globalWhiteRemoteAddresses"] = addresses

    await access.edit(choose, change)
    return f"set the white addresses {', '.join(addresses) or '(none)'}"


def acl_version(parts: AclAdminHandler, access: AccessControl) -> Reply:
    versions = {path: file.version for path, file in access.state.files.items()}
    answer = AclVersion(
        version=fastjson.write(versions[str(access.default)]).decode(),
        all_acl_file_version=fastjson.write(versions).decode(),
        broker_name=parts.config.broker_name,
        broker_addr=parts.addr,
        cluster_name=parts.config.broker_cluster_name,
    )
    return Reply(fields=fields(answer))


def acl_config(access: AccessControl) -> Reply:
    """Everything that is in force, secret keys too: tools edit accounts with it."""
    files = access.state.files.values()
    accounts: dict[str, AccountBody] = {}
    for file in files:
        for one in file.accounts or ():
            body = AccountBody(
                access_key=one.access_key,
                admin=one.admin,
                default_group_perm=one.default_group_perm,
                default_topic_perm=one.default_topic_perm,
                group_perms=one.group_perms,
                secret_key=one.secret_key,
                topic_perms=one.topic_perms,
                white_remote_address=one.white_remote_address,
            )
            accounts.setdefault(one.access_key, body)
    white = [one for file in files for one in file.global_white_remote_addresses or ()]
    return Reply(fields={}, body=fastjson.write(AclConfig(tuple(white), tuple(accounts.values()))))


def _file_of(files: dict[str, AclFile], access_key: str) -> str | None:
    for path, file in files.items():
        if any(one.access_key == access_key for one in file.accounts or ()):
            return path
    return None


def _entry(document: dict[str, Any], access_key: str) -> dict[str, Any] | None:
    for one in document.get("accounts") or []:
        if str(one.get("accessKey")) == access_key:
            found: dict[str, Any] = one
            return found
    return None


def _permission(key: str, text: str | None) -> str | None:
    if text and text not in PERMISSIONS:
        raise ConfigError(key, text, f"use one of {', '.join(PERMISSIONS)}")
    return text or None


def _list(text: str | None) -> list[str] | None:
    return None if text is None else [one.strip() for one in text.split(",") if one.strip()]
