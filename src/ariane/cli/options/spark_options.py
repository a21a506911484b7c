"""Options and checks of the commands that start Spark.

The script `./ariane` installs Spark when a command first needs it. It runs the command with ARIANE_SPARK_PROBE set: a valid
command line exits with status NEEDED where Spark would start, an invalid one reports its error before anything is installed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from ariane.cli.options.access_options import NO_ACCESS, AccessOptions, source_options
from ariane.cli.options.option_kinds import text_option
from ariane.cli.options.shared_options import NAMESRV_DEFAULT, NameServers
from ariane.errors import ConfigError, UsageError

# An exit status that no command has otherwise.
NEEDED = 10
PROBE = "ARIANE_SPARK_PROBE"

SPARK = "Spark options"  # section of the help


@dataclass(frozen=True, kw_only=True)
class SparkJobOptions:
    """Options of the commands that read topics with Spark."""

    namesrv: NameServers = NAMESRV_DEFAULT
    access: AccessOptions = NO_ACCESS
    master: Annotated[
        str, text_option(metavar="URL", help="Spark master, for example local[2] or spark://HOST:PORT.", panel=SPARK)
    ] = "local[2]"
    conf: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Spark setting, for example spark.driver.memory=4g; repeatable.",
            rich_help_panel=SPARK,
        ),
    ] = None
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help='Option of the Spark source "rocketmq", for example timeoutMs=30000; repeatable.',
            rich_help_panel=SPARK,
        ),
    ] = None

    def settings(self) -> dict[str, str]:
        """Return the settings of `--conf`."""
        return parse_conf(self.conf)

    def source(self) -> dict[str, str]:
        """Return the options of format("rocketmq")."""
        return source_options(self.namesrv, self.access, self.option)


def require_spark() -> None:
    """Check that Spark can start on this machine.

    Raises:
        ConfigError: pyspark or Java is missing. Explains how to install it.
    """
    from ariane.pipeline.spark_session import spark_fault

    if os.environ.get(PROBE):
        raise typer.Exit(NEEDED)
    if fault := spark_fault():
        raise ConfigError("Spark", None, fault)


def parse_conf(texts: Sequence[str] | None) -> dict[str, str]:
    """Return the settings of `--conf`. Errors show keys only, because a value may be a password.

    Raises:
        UsageError: a text is not KEY=VALUE, a key is repeated, or the jobs set it themselves.
    """
    from ariane.pipeline.spark_session import setting_fault

    settings: dict[str, str] = {}
    for text in texts or ():
        key, sign, value = text.partition("=")
        key = key.strip()
        if not sign or not key or not value.strip():
            raise UsageError("--conf", key, "expected KEY=VALUE, for example spark.driver.memory=4g")
        if fault := setting_fault(key):
            raise UsageError("--conf", key, fault)
        if key in settings:
            raise UsageError("--conf", key, "given twice; remove one")
        settings[key] = value.strip()
    return settings
