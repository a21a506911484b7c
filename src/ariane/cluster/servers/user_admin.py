"""Users of ACL 2.0 and their policies, on masters and slaves: each server has its own.

[CreateUser-, UpdateUser-, DeleteUser-, ListUser-, UpdateAcl-, DeleteAcl-, ListAclSubCommand of 5.x]
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

    async def users(self, servers: Sequence[BrokerServer]) -> Answers[list[UserInfo]]:
        """Return the users of each server. Passwords that Java's brokers return are omitted."""

        async def ask(server: BrokerServer) -> list[UserInfo]:
            answer = await self.request(server.addr, RequestCode.AUTH_LIST_USER, UserFilter())
            users = fastjson.decode(answer.body, list[UserInfo]) if answer.body else []
            return [UserInfo(user.username, None, user.user_type, user.user_status) for user in users]

        return await self.ask_all(servers, ask)

    async def policies(self, servers: Sequence[BrokerServer]) -> Answers[list[AclInfo]]:
        """Return the policies of all users of each server."""

        async def ask(server: BrokerServer) -> list[AclInfo]:
            answer = await self.request(server.addr, RequestCode.AUTH_LIST_ACL, PolicyFilter())
            return fastjson.decode(answer.body, list[AclInfo]) if answer.body else []

        return await self.ask_all(servers, ask)

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
        if is_mask(user.password):
            raise UsageError("password", user.password, "expected the password itself, or none to keep the stored one")
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
        subject = f"User:{name}"
        body = fastjson.write(AclInfo(subject, (PolicyInfo(policy_type, tuple(entries)),)))
        summary = f"save policies of {name}"
        return await self.change_each(servers, summary, RequestCode.AUTH_UPDATE_ACL, OfSubject(subject), body)

    async def delete_policy(
        self, name: str, resource: str | None, servers: Sequence[BrokerServer], *, policy_type: str = "Custom"
    ) -> list[Change]:
        """Delete the entry of a type and resource, or all policies of a user.

        Raises:
            PartialFailure, ReplyError: servers rejected the request.
        """
        header = OfSubject(f"User:{name}", policy_type if resource else None, resource)
        summary = f"delete policies of {name} for {resource or 'all resources'}"
        return await self.change_each(servers, summary, RequestCode.AUTH_DELETE_ACL, header)
