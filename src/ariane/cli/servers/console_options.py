"""Options that `ariane console` and `ariane console user` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ariane.cli.options import shared_options

Home = Annotated[
    Path | None,
    typer.Option(
        "--home",
        parser=shared_options.local_path,
        metavar="DIR",
        help="Home directory of the console, as for `ariane up`.  [default: $ARIANE_HOME or ~/.ariane]",
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data",
        parser=shared_options.local_path,
        metavar="DIR",
        help="Directory of accounts, sessions, alert rules and the audit log.  [default: console in the home]",
    ),
]
