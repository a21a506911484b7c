"""Accounts and global addresses of access control (ACL 1.0), on masters and slaves.

A slave checks requests by its own file, so that changes go to every server that is selected.
[UpdateAccessConfig-, DeleteAccessConfig-, UpdateGlobalWhiteAddr-, ClusterAclConfigVersionList-, GetAccessConfigSubCommand]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from ariane.cluster.connection import Answers, BrokerServer, Change, ClusterConnection
from ariane.errors import UsageError
from ariane.model.topic import DataVersion
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.acl import (
    AccountBody,
    AclConfig,
    AclVersion,
    DeleteAccount,
    UpdateAccount,
    UpdateWhiteAddresses,
)
from ariane.protocol.secret_masks import is_mask, mask_of


class AclFileVersion(NamedTuple):
    """Version of one file with accounts on a server."""

    cluster: str
    broker: str
    addr: str
    path: str
    version: DataVersion


class AclOperations(ClusterConnection):
    """Operations on access control."""

    async def save_account(self, account: UpdateAccount, servers: Sequence[BrokerServer]) -> list[Change]:
        """Create an account, or replace the settings of an account that `account` contains.

        Args:
            account: Access key and settings. A new account needs a secret key.
            servers: Servers whose file is changed (`select_brokers`, with slaves).

        Raises:
            UsageError: the secret key is a mask, which Java's brokers would store as the key.
            PartialFailure, ReplyError: servers rejected the request, for example because access control is disabled.
        """
        if is_mask(account.secret_key):
            raise UsageError("secretKey", account.secret_key, "expected the key itself, or none to keep the stored one")
        summary = f"save account {account.access_key}"
        return await self.change_each(servers, summary, RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, account)

    async def delete_account(self, access_key: str, servers: Sequence[BrokerServer]) -> list[Change]:
        """Delete an account.

        Raises:
            PartialFailure, ReplyError: servers rejected the request.
        """
        code = RequestCode.DELETE_ACL_CONFIG
        return await self.change_each(servers, f"delete account {access_key}", code, DeleteAccount(access_key))

    async def set_global_addresses(
        self, addresses: str, servers: Sequence[BrokerServer], *, path: str = ""
    ) -> list[Change]:
        """Replace the addresses from which requests need no account.

        Args:
            addresses: Patterns separated by commas, for example 10.0.0.*,192.168.1.7.
            servers: Servers whose file is changed.
            path: File on the servers; empty: their default one.

        Raises:
            PartialFailure, ReplyError: servers rejected the request.
        """
        header = UpdateWhiteAddresses(addresses, path)
        code = RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG
        summary = f"set global addresses {addresses}"
        return await self.change_each(servers, summary, code, header)

    async def acl_configs(self, servers: Sequence[BrokerServer]) -> Answers[AclConfig]:
        """Return the accounts and the global addresses of each server. Secret keys are masked, also those of Java's brokers."""

        async def ask(server: BrokerServer) -> AclConfig:
            answer = await self.request(server.addr, RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)
            config = fastjson.decode(answer.body, AclConfig)
            accounts = tuple(_masked(account) for account in config.plain_access_configs)
            return msgspec.structs.replace(config, plain_access_configs=accounts)

        return await self.ask_all(servers, ask)

    async def acl_versions(self, servers: Sequence[BrokerServer]) -> Answers[list[AclFileVersion]]:
        """Return the versions of the files with accounts of each server."""

        async def ask(server: BrokerServer) -> list[AclFileVersion]:
            answer = await self.request(server.addr, RequestCode.GET_BROKER_CLUSTER_ACL_INFO)
            header = decode_header(answer, AclVersion)
            files = fastjson.decode(header.all_acl_file_version.encode(), dict[str, DataVersion])
            return [
                AclFileVersion(header.cluster_name, header.broker_name, header.broker_addr, path, version)
                for path, version in sorted(files.items())
            ]

        return await self.ask_all(servers, ask)


def _masked(account: AccountBody) -> AccountBody:
    return msgspec.structs.replace(account, secret_key=mask_of(account.access_key, account.secret_key))
