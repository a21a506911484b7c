"""Account that signs the requests of `mqadmin`: from options, or from `tools.yml` as Java's tools read it. [AclUtils]"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ariane.errors import ConfigError, UsageError
from ariane.extras import naming_extras

if TYPE_CHECKING:
    from ariane.protocol.signing import Credentials

TOOLS_FILE = "conf/tools.yml"  # below $ROCKETMQ_HOME


def read_account(access_key: str | None, secret_key: str | None, environment: Mapping[str, str]) -> Credentials | None:
    """Return the account to sign with; None if there is none.

    Order: the options, ARIANE_ACCESS_KEY and ARIANE_SECRET_KEY, then `$ROCKETMQ_HOME/conf/tools.yml`.

    Raises:
        UsageError: only one of the two keys is set.
        ConfigError: tools.yml is not YAML with `accessKey` and `secretKey`.
    """
    access_key = access_key or environment.get("ARIANE_ACCESS_KEY", "")
    secret_key = secret_key or environment.get("ARIANE_SECRET_KEY", "")
    if access_key or secret_key:
        if not (access_key and secret_key):
            missing = "--secretKey" if access_key else "--accessKey"
            raise UsageError(missing, None, "missing; specify both --accessKey and --secretKey, or neither")
        return _credentials(access_key, secret_key)
    home = environment.get("ROCKETMQ_HOME")
    path = Path(home) / TOOLS_FILE if home else None
    if path is None or not path.is_file():
        return None
    return _read_file(path)


def _read_file(path: Path) -> Credentials:
    with naming_extras():
        import yaml  # only with access control: a tenth of the start-up time

    try:
        table = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), None, f"not readable as YAML: {error}") from None
    keys = [table.get(name) for name in ("accessKey", "secretKey")] if isinstance(table, dict) else [None, None]
    if not all(keys):
        raise ConfigError(str(path), None, "expected accessKey and secretKey, both not empty")
    return _credentials(str(keys[0]), str(keys[1]))


def _credentials(access_key: str, secret_key: str) -> Credentials:
    from ariane.protocol.signing import Credentials

    return Credentials(access_key, secret_key)
