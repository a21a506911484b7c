"""Options that `ariane console` and `ariane console user` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ariane.cli.options.option_kinds import path_option

Home = Annotated[
    Path | None,
    path_option(
        "--home",
        metavar="DIR",
        help="Home directory of the console, as for `ariane up`.  [default: $ARIANE_HOME or ~/.ariane]",
    ),
]
DataDir = Annotated[
    Path | None,
    path_option(
        "--data",
        metavar="DIR",
        help="Directory of accounts, sessions, alert rules and the audit log.  [default: console in the home]",
    ),
]
