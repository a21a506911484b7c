"""Users of ACL 2.0 and their policies, on masters and slaves: each server has its own.

[CreateUser-, UpdateUser-, DeleteUser-, GetUser-, ListUser-, CopyUsers-, CreateAcl-, UpdateAcl-, DeleteAcl-, GetAcl-, ListAcl-,
CopyAclsSubCommand of 5.x]
"""

from __future__ import annotations

from collections.abc import Sequence

from ariane.cluster.connection import Answers, BrokerServer, Change, ClusterConnection
from ariane.errors import ServerUnavailable, UsageError
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests.users import (
    AclInfo,
    OfSubject,
    OfUser,
    PolicyEntryInfo,
    PolicyFilter,
    PolicyInfo,
    UserFilter,
    UserInfo,
)
from ariane.protocol.secret_masks import is_mask


class UserOperations(ClusterConnection):
    """Operations on users and policies."""

    async def users(self, servers: Sequence[BrokerServer], part: str | None = None) -> Answers[list[UserInfo]]:
        """Return the users of each server whose names contain `part`. Passwords that Java's brokers return are omitted."""

        async def ask(server: BrokerServer) -> list[UserInfo]:
            return [_without_password(user) for user in await self._users(server, part)]

        return await self.ask_all(servers, ask)

    async def user(self, name: str, servers: Sequence[BrokerServer]) -> Answers[UserInfo | None]:
        """Return a user of each server without its password; None if it does not exist."""

        async def ask(server: BrokerServer) -> UserInfo | None:
            user = await self._user(server, name)
            return None if user is None else _without_password(user)

        return await self.ask_all(servers, ask)

    async def policies(
        self, servers: Sequence[BrokerServer], subject_part: str | None = None, resource_part: str | None = None
    ) -> Answers[list[AclInfo]]:
        """Return the policies of each server whose subjects and resources contain these parts."""
        return await self.ask_all(servers, lambda server: self._policies(server, subject_part, resource_part))

    async def policies_of(self, subject: str, servers: Sequence[BrokerServer]) -> Answers[AclInfo | None]:
        """Return the policies of a subject (`User:alice`) of each server; None if it has none."""
        return await self.ask_all(servers, lambda server: self._policies_of(server, subject))

    async def put_user(self, user: UserInfo, servers: Sequence[BrokerServer], *, is_new: bool) -> list[Change]:
        """Create a user, or change those of its settings that `user` contains.

        Raises:
            UsageError: the password is a mask, which everybody could guess.
            PartialFailure, ReplyError: servers rejected the request.
        """
        _check_password(user)
        code = RequestCode.AUTH_CREATE_USER if is_new else RequestCode.AUTH_UPDATE_USER
        name = user.username or ""
        summary = f"{'create' if is_new else 'change'} user {name}"
        return await self.change_each(servers, summary, code, OfUser(name), fastjson.write(user))

    async def put_policies(
        self, acl: AclInfo, servers: Sequence[BrokerServer], *, is_new: bool = False
    ) -> list[Change]:
        """Add entries to the policies of a subject; an entry of the same type and resource is replaced.

        Raises:
            PartialFailure, ReplyError: servers rejected the request.
        """
        code = RequestCode.AUTH_CREATE_ACL if is_new else RequestCode.AUTH_UPDATE_ACL
        subject = acl.subject or ""
        return await self.change_each(
            servers, f"save policies of {subject}", code, OfSubject(subject), fastjson.write(acl)
        )

    async def copy_users(self, names: Sequence[str], source: BrokerServer, target: BrokerServer) -> list[str]:
        """Copy users from one server to another. Return the names of those that were copied.

        Args:
            names: Names of users; those that the source does not have are omitted. Empty: all.
            source: Servers of Ariane return no passwords: the target keeps that of its user.
            target: Gets the type and status of each user, and the password of a Java source.

        Raises:
            UsageError: the target lacks a user whose password the source does not return; nothing was changed.
            PartialFailure, ReplyError: a server rejected a request.
        """
        found = [await self._user(source, name) for name in names] if names else await self._users(source)
        users = [user for user in found if user is not None]
        existing = {user.username for user in await self._users(target)}
        for user in users:
            if user.username not in existing and not user.password:
                reason = f"{source.addr} returns no passwords; create the user on {target.addr} first"
                raise UsageError("usernames", user.username, reason)
        changes = [
            Change(
                target.addr,
                f"save user {user.username}",
                RequestCode.AUTH_UPDATE_USER if user.username in existing else RequestCode.AUTH_CREATE_USER,
                OfUser(user.username or ""),
                fastjson.write(user),
            )
            for user in users
        ]
        await self.change(*changes)
        return [user.username or "" for user in users]

    async def copy_policies(self, subjects: Sequence[str], source: BrokerServer, target: BrokerServer) -> list[str]:
        """Copy the policies of subjects from one server to another. Return the subjects that were copied.

        Args:
            subjects: Subjects; those that the source does not have are omitted. Empty: all.
            source: Server that has them.
            target: Server whose entries of the same resources are replaced. It needs the users.

        Raises:
            PartialFailure, ReplyError: a server rejected a request.
        """
        if subjects:
            found = [await self._policies_of(source, subject) for subject in subjects]
        else:
            found = list(await self._policies(source, None, None))
        acls = [acl for acl in found if acl is not None]
        existing = {acl.subject for acl in await self._policies(target, None, None)}
        for acl in acls:
            await self.put_policies(acl, [target], is_new=acl.subject not in existing)
        return [acl.subject or "" for acl in acls]

    async def save_user(self, user: UserInfo, servers: Sequence[BrokerServer]) -> list[Change]:
        """Create a user, or replace those of its settings that `user` contains.

        Args:
            user: Name and settings. A new user needs a password.
            servers: Servers that are changed (`select_brokers`, with slaves).

        Raises:
            UsageError: the password is a mask, which everybody could guess.
            PartialFailure, ReplyError: servers rejected the request, for example because users are disabled.
            ServerUnavailable: a server did not say whether it has the user.
        """
        _check_password(user)
        name = user.username or ""
        answers = await self.users(servers)
        if answers.unavailable:
            raise ServerUnavailable(f"cannot list the users of {', '.join(map(str, answers.unavailable))}")
        codes = {
            server.addr: RequestCode.AUTH_UPDATE_USER
            if any(other.username == name for other in users)
            else RequestCode.AUTH_CREATE_USER
            for server, users in answers.values
        }
        body = fastjson.write(user)
        return await self.change(
            *(Change(addr, f"save user {name}", code, OfUser(name), body) for addr, code in codes.items())
        )

    async def delete_user(self, name: str, servers: Sequence[BrokerServer]) -> list[Change]:
        """Delete a user with its policies.

        Raises:
            PartialFailure, ReplyError: servers rejected the request.
        """
        return await self.change_each(servers, f"delete user {name}", RequestCode.AUTH_DELETE_USER, OfUser(name))

    async def save_policy(
        self,
        name: str,
        entries: Sequence[PolicyEntryInfo],
        servers: Sequence[BrokerServer],
        *,
        policy_type: str = "Custom",
    ) -> list[Change]:
        """Add entries to the policies of a user; an entry of the same type and resource is replaced.

        Raises:
            PartialFailure, ReplyError: servers rejected the request.
        """
        return await self.put_policies(AclInfo(f"User:{name}", (PolicyInfo(policy_type, tuple(entries)),)), servers)

    async def delete_policies(
        self, subject: str, resource: str | None, servers: Sequence[BrokerServer], *, policy_type: str = "Custom"
    ) -> list[Change]:
        """Delete the entry of a type and resource, or all policies of a subject (`User:alice`).

        Raises:
            PartialFailure, ReplyError: servers rejected the request.
        """
        header = OfSubject(subject, policy_type if resource else None, resource)
        summary = f"delete policies of {subject} for {resource or 'all resources'}"
        return await self.change_each(servers, summary, RequestCode.AUTH_DELETE_ACL, header)

    async def _user(self, server: BrokerServer, name: str) -> UserInfo | None:
        answer = await self.request(server.addr, RequestCode.AUTH_GET_USER, OfUser(name))
        return fastjson.decode(answer.body, UserInfo) if answer.body else None

    async def _users(self, server: BrokerServer, part: str | None = None) -> list[UserInfo]:
        answer = await self.request(server.addr, RequestCode.AUTH_LIST_USER, UserFilter(part))
        return fastjson.decode(answer.body, list[UserInfo]) if answer.body else []

    async def _policies_of(self, server: BrokerServer, subject: str) -> AclInfo | None:
        answer = await self.request(server.addr, RequestCode.AUTH_GET_ACL, OfSubject(subject))
        return fastjson.decode(answer.body, AclInfo) if answer.body else None

    async def _policies(self, server: BrokerServer, subject: str | None, resource: str | None) -> list[AclInfo]:
        answer = await self.request(server.addr, RequestCode.AUTH_LIST_ACL, PolicyFilter(subject, resource))
        return fastjson.decode(answer.body, list[AclInfo]) if answer.body else []


def _without_password(user: UserInfo) -> UserInfo:
    return UserInfo(user.username, None, user.user_type, user.user_status)


def _check_password(user: UserInfo) -> None:
    if is_mask(user.password):
        raise UsageError("password", user.password, "expected the password itself, or none to keep the stored one")
