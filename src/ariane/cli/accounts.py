"""--access-key and --secret-key, as clients and Spark sources of brokers with access control take them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ariane.errors import ConfigError

if TYPE_CHECKING:
    from ariane.client.config import ClientSettings


def client_settings(access_key: str, secret_key: str) -> ClientSettings | None:
    """None without an account. ConfigError when only one of the two is given."""
    from ariane.client.config import ClientSettings
    from ariane.protocol.signing import Credentials

    if not _is_given(access_key, secret_key):
        return None
    return ClientSettings(credentials=Credentials(access_key, secret_key))


def spark_options(namesrv: str, access_key: str, secret_key: str) -> dict[str, str]:
    """Options of format("rocketmq"): where the cluster is, and who asks. ConfigError when only one of the two is given."""
    account = {"accessKey": access_key, "secretKey": secret_key} if _is_given(access_key, secret_key) else {}
    return {"namesrv": namesrv, **account}


def _is_given(access_key: str, secret_key: str) -> bool:
    if bool(access_key) != bool(secret_key):
        missing = "--secret-key" if access_key else "--access-key"
        raise ConfigError(missing, "", "--access-key and --secret-key are given together or not at all")
    return bool(access_key)
