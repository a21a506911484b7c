"""The account of a server's own requests, from its configuration."""

from __future__ import annotations

import os
from typing import Protocol

from ariane.access import secret_references
from ariane.errors import ConfigError
from ariane.protocol.signing import Credentials


class AccountSettings(Protocol):
    """Settings of a server that name its account."""

    @property
    def access_key(self) -> str: ...
    @property
    def secret_key(self) -> str: ...
    @property
    def secret_key_file(self) -> str: ...
    @property
    def secret_key_variable(self) -> str: ...


def own_credentials(config: AccountSettings, file_name: str = "broker.conf") -> Credentials | None:
    """Return the account that signs requests to name servers and to the master; None if they are not signed.

    Raises:
        ConfigError: the account has no secret key, or several, or it cannot be read. Shows no secret.
    """
    texts = {
        secret_references.SECRET: config.secret_key,
        secret_references.SECRET_FILE: config.secret_key_file,
        secret_references.SECRET_VARIABLE: config.secret_key_variable,
    }
    keys = {key: text for key, text in texts.items() if text}
    if not config.access_key:
        if keys:
            raise ConfigError("accessKey", "", f"expected the account of {' and '.join(keys)}")
        return None
    if not keys:
        raise ConfigError("accessKey", config.access_key, f"needs one of {', '.join(texts)}")
    document = {"accounts": [{"accessKey": config.access_key, **keys}]}
    (account,) = secret_references.with_secrets(file_name, document, os.environ)["accounts"]
    return Credentials(config.access_key, account[secret_references.SECRET])
