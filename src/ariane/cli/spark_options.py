"""What the commands that start Spark share: its settings, and whether it is there.

`./ariane` installs Spark when a command first needs it. It runs the command with ARIANE_SPARK_PROBE set: a command line that can be
run ends with the status NEEDED where Spark would start, any other reports what is wrong with it, before anything is installed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated

import typer

from ariane.errors import ConfigError, UsageError

NEEDED = 10
PROBE = "ARIANE_SPARK_PROBE"

ConfOption = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="Setting of Spark, such as spark.driver.memory=4g; repeatable."),
]


def require_spark() -> None:
    """Return if Spark can be started here.

    Raises:
        ConfigError: pyspark or Java is missing. Says how to install it.
    """
    from ariane.pipeline.spark_session import spark_fault

    if os.environ.get(PROBE):
        raise typer.Exit(NEEDED)
    if fault := spark_fault():
        raise ConfigError("Spark", None, fault)


def parse_conf(texts: Sequence[str] | None) -> dict[str, str]:
    """Return the settings that `--conf` names. Errors show keys only, as a value may be a password.

    Raises:
        UsageError: a text is not KEY=VALUE, a key is repeated, or it is one that the jobs choose themselves.
    """
    from ariane.pipeline.spark_session import setting_fault

    found: dict[str, str] = {}
    for text in texts or ():
        key, sign, value = text.partition("=")
        key = key.strip()
        if not sign or not key or not value.strip():
            raise UsageError("--conf", key, "expected KEY=VALUE, such as spark.driver.memory=4g")
        if fault := setting_fault(key):
            raise UsageError("--conf", key, fault)
        if key in found:
            raise UsageError("--conf", key, "is given twice: keep one")
        found[key] = value.strip()
    return found
