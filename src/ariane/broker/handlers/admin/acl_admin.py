"""Accounts of access control, created, changed and listed by tools (50–54). [AdminBrokerProcessor]

Without aclEnable all codes are answered with the reason; 4.9.4 leaves 52 and 54 without a response.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from ariane.access import ip_allowlist, secret_references
from ariane.access.access_control import AccessControl
from ariane.access.acl import PERMISSIONS, AclFile
from ariane.broker.config.broker_config import BrokerConfig
from ariane.errors import ConfigError, ProtocolError, ReplyError
from ariane.net.connection import HandlerResult, Peer, Reply
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import decode_header, encode_header
from ariane.protocol.requests.acl import (
    AccountBody,
    AclConfig,
    AclVersion,
    DeleteAccount,
    UpdateAccount,
    UpdateWhiteAddresses,
)
from ariane.protocol.secret_masks import is_mask, mask_of

log = logging.getLogger("ariane.access")

# The response code of a failed request.
FAILED = {
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED,
    RequestCode.DELETE_ACL_CONFIG: ResponseCode.DELETE_ACL_CONFIG_FAILED,
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO: ResponseCode.SYSTEM_ERROR,
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED,
    RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: ResponseCode.SYSTEM_ERROR,
}
DISABLED = "access control is disabled on this broker: set aclEnable=true in broker.conf and restart it"

AclEdit = Callable[[AccessControl, Command], Awaitable[str]]
"""Changes a file as a request asks for; returns what was done, for the log."""


class AclAdminHandler:
    """Edits the files of access control and reports their content."""

    def __init__(self, *, config: BrokerConfig, addr: str, access: AccessControl | None) -> None:
        self._config = config
        self._addr = addr
        self._access = access  # None if access control is disabled

    def update_account(self, command: Command, peer: Peer) -> HandlerResult:
        """Handle UPDATE_AND_CREATE_ACL_CONFIG: create an account in the default file, or change it where it is defined.

        Of an existing account, fields missing in the request stay unchanged; `admin` is always set.
        """
        return self._edit(_update_account, command, peer)

    def delete_account(self, command: Command, peer: Peer) -> HandlerResult:
        """Handle DELETE_ACL_CONFIG."""
        return self._edit(_delete_account, command, peer)

    def update_white_addresses(self, command: Command, peer: Peer) -> HandlerResult:
        """Handle UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: replace the allowed addresses of one file, by default of the default file."""
        return self._edit(_update_white_addresses, command, peer)

    def version(self, command: Command, peer: Peer) -> Reply:
        """Handle GET_BROKER_CLUSTER_ACL_INFO: the versions of all files."""
        access = self._access
        if access is None:
            return _disabled(command)
        versions = {path: file.version for path, file in access.state.files.items()}
        response = AclVersion(
            version=fastjson.write(versions[str(access.default)]).decode(),
            all_acl_file_version=fastjson.write(versions).decode(),
            broker_name=self._config.broker_name,
            broker_addr=self._addr,
            cluster_name=self._config.broker_cluster_name,
        )
        return Reply(fields=encode_header(response))

    def config(self, command: Command, peer: Peer) -> Reply:
        """Handle GET_BROKER_CLUSTER_ACL_CONFIG: all accounts and addresses in force.

        Secret keys are masked, unlike in 4.9.4. Tools that edit an account send the mask back, which keeps the stored key.
        """
        if self._access is None:
            return _disabled(command)
        files = self._access.state.files.values()
        accounts: dict[str, AccountBody] = {}
        for file in files:
            for account in file.accounts or ():
                body = AccountBody(
                    access_key=account.access_key,
                    admin=account.admin,
                    default_group_perm=account.default_group_perm,
                    default_topic_perm=account.default_topic_perm,
                    group_perms=account.group_perms,
                    secret_key=mask_of(account.access_key, account.secret_key),
                    topic_perms=account.topic_perms,
                    white_remote_address=account.white_remote_address,
                )
                accounts.setdefault(account.access_key, body)  # the first file wins, as when requests are checked
        addresses = [address for file in files for address in file.global_white_remote_addresses or ()]
        return Reply(fields={}, body=fastjson.write(AclConfig(tuple(addresses), tuple(accounts.values()))))

    def _edit(self, edit: AclEdit, command: Command, peer: Peer) -> HandlerResult:
        if self._access is None:
            return _disabled(command)
        return _run_edit(edit, self._access, command, peer)


def _disabled(command: Command) -> Reply:
    return Reply(FAILED[RequestCode(command.code)], remark=DISABLED)


async def _run_edit(edit: AclEdit, access: AccessControl, command: Command, peer: Peer) -> Reply:
    try:
        change = await edit(access, command)
    except (ConfigError, ProtocolError, OSError) as error:
        raise ReplyError(FAILED[RequestCode(command.code)], str(error)) from None
    log.warning("Access control changed by %s: %s", peer.addr, change)
    return Reply()


async def _update_account(access: AccessControl, command: Command) -> str:
    request = decode_header(command, UpdateAccount)
    secret_key = None if is_mask(request.secret_key) else request.secret_key
    values = {
        "secretKey": secret_key,
        "whiteRemoteAddress": request.white_remote_address,
        "admin": request.admin,
        "defaultTopicPerm": _permission("defaultTopicPerm", request.default_topic_perm),
        "defaultGroupPerm": _permission("defaultGroupPerm", request.default_group_perm),
        "topicPerms": _list(request.topic_perms),
        "groupPerms": _list(request.group_perms),
    }

    def change(document: dict[str, Any]) -> None:
        entry = _entry(document, request.access_key)
        if entry is None:
            if not secret_key:
                fix = "requires a secret key; masks of other accounts are none"
                raise ConfigError("secretKey", "", f"the new account {request.access_key} {fix}")
            entry = {"accessKey": request.access_key}
            document["accounts"] = [*(document.get("accounts") or []), entry]
        if secret_key:
            for reference in secret_references.REFERENCES:
                entry.pop(reference, None)
        entry.update({key: value for key, value in values.items() if value is not None})

    await access.edit(lambda files: _file_of(files, request.access_key) or str(access.default), change)
    return f"account {request.access_key} changed"


async def _delete_account(access: AccessControl, command: Command) -> str:
    access_key = decode_header(command, DeleteAccount).access_key

    def change(document: dict[str, Any]) -> None:
        accounts = document["accounts"]
        document["accounts"] = [entry for entry in accounts if str(entry.get("accessKey")) != access_key]

    def choose(files: dict[str, AclFile]) -> str:
        path = _file_of(files, access_key)
        if path is None:
            raise ConfigError("accessKey", access_key, "no such account; getAclConfig lists all accounts")
        return path

    await access.edit(choose, change)
    return f"account {access_key} deleted"


async def _update_white_addresses(access: AccessControl, command: Command) -> str:
    request = decode_header(command, UpdateWhiteAddresses)
    addresses = ip_allowlist.split_patterns(request.global_white_addrs)

    def choose(files: dict[str, AclFile]) -> str:
        path = request.acl_file_full_path.strip() or str(access.default)
        # Only files that access control reads: a request must not choose what else is written.
        if path not in files:
            raise ConfigError(
                "aclFileFullPath", path, f"not an access control file; expected one of {', '.join(files)}"
            )
        return path

    def change(document: dict[str, Any]) -> None:
        document["globalWhiteRemoteAddresses"] = addresses

    await access.edit(choose, change)
    return f"white addresses set to {', '.join(addresses) or '(none)'}"


def _file_of(files: dict[str, AclFile], access_key: str) -> str | None:
    for path, file in files.items():
        if any(account.access_key == access_key for account in file.accounts or ()):
            return path
    return None


def _entry(document: dict[str, Any], access_key: str) -> dict[str, Any] | None:
    entry: dict[str, Any]
    for entry in document.get("accounts") or []:
        if str(entry.get("accessKey")) == access_key:
            return entry
    return None


def _permission(key: str, text: str | None) -> str | None:
    if text and text not in PERMISSIONS:
        raise ConfigError(key, text, f"use one of {', '.join(PERMISSIONS)}")
    return text or None


def _list(text: str | None) -> list[str] | None:
    return None if text is None else [item.strip() for item in text.split(",") if item.strip()]
