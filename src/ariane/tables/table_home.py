"""HOME of tables: a local directory, or a prefix of an object store or of HDFS. `ariane.tables.table_store` opens it.

    Path("/srv/ariane/tables")                       lists of files (`directory_tables`), next to checkpoints and logs
    ObjectHome("s3://bucket/tables", Path("…"))      Delta tables (`object_tables`); checkpoints and logs are in the local directory

Credentials, region and endpoint of an object store are taken from the environment, as its own tools do (AWS_ACCESS_KEY_ID,
AWS_REGION, AWS_ENDPOINT_URL, GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_NAME, …), those of HDFS, too
(HADOOP_CONF_DIR, HADOOP_USER_NAME).
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import NamedTuple, TypeAlias
from urllib.parse import quote, urlsplit

from ariane.errors import ConfigError

PREFIXES = {
    "s3": "s3://bucket/prefix",
    "gs": "gs://bucket/prefix",
    "abfss": "abfss://container@account.dfs.core.windows.net/prefix",
    "hdfs": "hdfs://namenode:8020/directory",  # or hdfs://nameservice/directory
}
PACKAGES = ("deltalake", "pyarrow", "pandas")  # pandas: Spark's mapInArrow requires it


class ObjectHome(NamedTuple):
    """Tables in an object store, or in HDFS."""

    uri: str  # without a slash at the end
    local: Path
    """Directory of what only the machine of the driver needs: Spark's checkpoints and its log."""

    def __str__(self) -> str:
        return self.uri


Home: TypeAlias = Path | ObjectHome


def object_home(uri: str, local_root: Path) -> ObjectHome:
    """Return the home with a URI.

    Args:
        uri: of a form of `PREFIXES`.
        local_root: directory in which each such home has a directory of its own.

    Raises:
        ConfigError: another kind of URI, a URI with a password, or the packages of the extra `objectstore` are not installed.
    """
    parts = urlsplit(uri)
    if parts.password is not None:  # reports, logs and directory names would show it
        fix = "expected no password in the URI; set the environment variables of the object store"
        raise ConfigError("home", f"{parts.scheme}://…@{parts.hostname}", fix)
    if parts.scheme not in PREFIXES:
        fix = f"expected a local directory or a URI with {', '.join(f'{scheme}://' for scheme in PREFIXES)}"
        raise ConfigError("home", uri, fix)
    if not parts.netloc or parts.query or parts.fragment:
        fix = f"expected {PREFIXES[parts.scheme]}; other settings are taken from the environment"
        raise ConfigError("home", uri.partition("?")[0], fix)  # a query may contain a secret
    if missing := [package for package in PACKAGES if importlib.util.find_spec(package) is None]:
        fix = f"needs {' and '.join(missing)}: pip install 'ariane[objectstore]'"
        raise ConfigError("home", uri, fix)
    uri = uri.rstrip("/")
    return ObjectHome(uri, local_root / "object-stores" / quote(uri, safe=""))
