"""Users and policies of ACL 2.0, created, changed and listed by tools (3001–3010). [AdminBrokerProcessor of 5.x]

No response has a password, unlike those of 5.3.3: `mqadmin copyUser` copies users to brokers that have them already.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ariane.access import users as user_table
from ariane.access.access_control import AccessControl
from ariane.access.acl import Account
from ariane.access.users import User, Users
from ariane.errors import ConfigError, ReplyError
from ariane.net.connection import HandlerResult, Peer, Reply
from ariane.protocol import fastjson
from ariane.protocol.codes import ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import decode_body, decode_header
from ariane.protocol.requests.users import AclInfo, OfSubject, OfUser, PolicyFilter, UserFilter, UserInfo
from ariane.protocol.signing import ACCESS_KEY

log = logging.getLogger("ariane.access")

DISABLED = "users are disabled on this broker: set authenticationEnabled=true in broker.conf and restart it"


class UserAdminHandler:
    """Edits users with their policies, and reports them."""

    def __init__(self, access: AccessControl | None) -> None:
        self._access = access  # None if users are disabled

    def create_user(self, command: Command, peer: Peer) -> HandlerResult:
        """Handle AUTH_CREATE_USER."""
        access, name, info = self._enabled(), _name(command), decode_body(command, UserInfo)
        if isinstance(access.state.acl.account(name), Account):
            raise ReplyError(ResponseCode.NO_PERMISSION, f"plain_acl.yml has an account of the name {name}")
        by_super = _is_super(access, command)
        return _edit(
            access,
            peer,
            f"user {name} created",
            lambda users: user_table.create_user(users, name, info, by_super=by_super),
        )

    def update_user(self, command: Command, peer: Peer) -> HandlerResult:
        """Handle AUTH_UPDATE_USER: members that are missing in the request stay unchanged."""
        access, name, info = self._enabled(), _name(command), decode_body(command, UserInfo)
        by_super = _is_super(access, command)
        return _edit(
            access,
            peer,
            f"user {name} changed",
            lambda users: user_table.update_user(users, name, info, by_super=by_super),
        )

    def delete_user(self, command: Command, peer: Peer) -> HandlerResult:
        """Handle AUTH_DELETE_USER: with its policies. Deleting an absent user succeeds, as in 5.3.3."""
        access, name = self._enabled(), _name(command)
        by_super = _is_super(access, command)
        return _edit(
            access, peer, f"user {name} deleted", lambda users: user_table.delete_user(users, name, by_super=by_super)
        )

    def user(self, command: Command, peer: Peer) -> Reply:
        """Handle AUTH_GET_USER; the response has no body if the user does not exist."""
        user = self._enabled().state.users.get(_name(command))
        return Reply(body=fastjson.write(user.info) if user is not None else b"")

    def users(self, command: Command, peer: Peer) -> Reply:
        """Handle AUTH_LIST_USER; the response has no body without a user."""
        part = decode_header(command, UserFilter).filter
        return _list(user_table.find_users(self._enabled().state.users, part))

    def put_policies(self, command: Command, peer: Peer) -> HandlerResult:
        """Handle AUTH_CREATE_ACL and AUTH_UPDATE_ACL: entries of new resources are appended, others replaced."""
        access, subject = self._enabled(), decode_header(command, OfSubject).subject
        acl = decode_body(command, AclInfo)
        if acl.subject not in (None, subject):
            raise ReplyError(ResponseCode.NO_PERMISSION, f"the subject is {subject}, that of the body {acl.subject}")
        policies = acl.policies or ()
        return _edit(
            access,
            peer,
            f"policies of {subject} changed",
            lambda users: user_table.put_policies(users, subject, policies),
        )

    def delete_policies(self, command: Command, peer: Peer) -> HandlerResult:
        """Handle AUTH_DELETE_ACL: the entry of a resource, or all policies of the subject."""
        access, header = self._enabled(), decode_header(command, OfSubject)
        return _edit(
            access,
            peer,
            f"policies of {header.subject} for {header.resource or 'all resources'} deleted",
            lambda users: user_table.delete_policies(users, header.subject, header.policy_type, header.resource),
        )

    def policies(self, command: Command, peer: Peer) -> Reply:
        """Handle AUTH_GET_ACL; the response has no body if the user has no policies."""
        user = user_table.subject_of(self._enabled().state.users, decode_header(command, OfSubject).subject)
        return Reply(body=fastjson.write(user.acl) if user.policies else b"")

    def all_policies(self, command: Command, peer: Peer) -> Reply:
        """Handle AUTH_LIST_ACL; the response has no body without a policy."""
        header = decode_header(command, PolicyFilter)
        return _list(user_table.find_acls(self._enabled().state.users, header.subject_filter, header.resource_filter))

    def _enabled(self) -> AccessControl:
        if self._access is None:
            raise ReplyError(ResponseCode.SYSTEM_ERROR, DISABLED)
        return self._access


def _name(command: Command) -> str:
    name = decode_header(command, OfUser).username.strip()
    if not name:
        raise ReplyError(ResponseCode.INVALID_PARAMETER, "The username is blank")
    return name


def _is_super(access: AccessControl, command: Command) -> bool:
    """Return whether the sender may change Super users: an admin of plain_acl.yml may, too."""
    user = access.state.users.get(command.field_map().get(ACCESS_KEY, ""))
    return user is None or user.is_super


def _list(values: list[Any]) -> Reply:
    return Reply(body=fastjson.write(values) if values else b"")


async def _edit(access: AccessControl, peer: Peer, done: str, change: Callable[[Users], dict[str, User]]) -> Reply:
    try:
        await access.edit_users(change)
    except ConfigError as error:
        raise ReplyError(ResponseCode.NO_PERMISSION, str(error)) from None
    except OSError as error:
        raise ReplyError(ResponseCode.SYSTEM_ERROR, f"cannot store the users: {error.strerror}") from None
    log.warning("Access control changed by %s: %s", peer.addr, done)
    return Reply()
