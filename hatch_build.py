"""Build hook of the wheel: adds the documentation site, which `mkdocs build` writes before, as share/doc/ariane.

    ARIANE_SITE=build/site python -m build

Without ARIANE_SITE the wheel has no site: an installation from a clone needs none of mkdocs.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

TARGET = "share/doc/ariane"  # below the prefix of the environment that installs the wheel
OMITTED = {".map", ".gz"}  # for debuggers and web servers


class SiteHook(BuildHookInterface[Any]):
    """Adds the files of the site to the data of the wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the files, or raise an error if the directory contains no site."""
        name = os.environ.get("ARIANE_SITE")
        if not name:
            return
        site = Path(self.root, name)
        if not (site / "index.html").is_file():
            raise FileNotFoundError(f"ARIANE_SITE: no index.html in {site}: run `mkdocs build --strict` first")
        for path in site.rglob("*"):
            if path.is_file() and path.suffix not in OMITTED:
                build_data["shared_data"][str(path)] = f"{TARGET}/{path.relative_to(site).as_posix()}"
