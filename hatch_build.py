"""Build hooks: the documentation site, which `mkdocs build` writes before, as share/doc/ariane; the links of the README.

    ARIANE_SITE=build/site ARIANE_REPOSITORY=https://github.com/OWNER/NAME python -m build

Without ARIANE_SITE the wheel has no site: an installation from a clone needs none of mkdocs. Without ARIANE_REPOSITORY the metadata
has no links to the repository, and the links of the README are relative.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

TARGET = "share/doc/ariane"  # below the prefix of the environment that installs the wheel
OMITTED = {".map", ".gz"}  # for debuggers and web servers
RELATIVE_LINK = re.compile(r"\]\((?!\w+:|#)([^)\s]+)")
PICTURES = (".png", ".svg")


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


class LinksHook(MetadataHookInterface):
    """Adds the README and the URLs of the project, both with the files of this version in the repository."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Add `readme` and `urls`. A package index resolves no relative links."""
        repository = os.environ.get("ARIANE_REPOSITORY", "").rstrip("/")
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["urls"] = {}
        if repository:
            tag = f"v{metadata['version']}"

            def absolute(link: re.Match[str]) -> str:
                kind = "raw" if link[1].endswith(PICTURES) else "blob"
                return f"]({repository}/{kind}/{tag}/{link[1]}"

            text = RELATIVE_LINK.sub(absolute, text)
            metadata["urls"] = {
                "Homepage": repository,
                "Documentation": f"{repository}/blob/{tag}/docs/index.md",
                "Changelog": f"{repository}/blob/{tag}/CHANGELOG.md",
                "Issues": f"{repository}/issues",
            }
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
