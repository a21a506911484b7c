"""Build hooks: the documentation site, which `mkdocs build` writes before, as share/doc/ariane; the bill of materials as
.dist-info/sboms/ariane.cdx.json (CycloneDX, PEP 770); the jar for Spark's column pruning; the links of the README.

    ARIANE_SITE=build/site ARIANE_SPARK_JARS=…/pyspark/jars ARIANE_REPOSITORY=https://github.com/OWNER/NAME python -m build

Without ARIANE_SITE the wheel has no site: an installation from a clone needs none of mkdocs. Without ARIANE_SPARK_JARS it has no
jar, which is compiled on first use then. Without ARIANE_REPOSITORY the metadata has no links to the repository, and the links of
the README are relative.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import tempfile
import uuid
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

TARGET = "share/doc/ariane"  # below the prefix of the environment that installs the wheel
OMITTED = {".map", ".gz"}  # for debuggers and web servers
SBOM = "ariane.cdx.json"
VENDORED = "src/ariane/console/static/vendor"  # scripts and styles of others, which the wheel contains
LOCK = "requirements.lock"
COMPILATION = "src/ariane/spark/pruning/compilation.py"
JAR = "ariane/spark/pruning/ariane-spark.jar"  # where ariane.spark.pruning_jar() looks for it
PINNED = re.compile(r"^([\w.-]+)==([^\s;]+)", re.MULTILINE)
RELATIVE_LINK = re.compile(r"\]\((?!\w+:|#)([^)\s]+)")
PICTURES = (".png", ".svg")


class SiteHook(BuildHookInterface[Any]):
    """Adds the bill of materials, the jar, and the files of the site to the data of the wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the files, or raise an error if the directory contains no site."""
        self._directory = tempfile.TemporaryDirectory()
        sbom = Path(self._directory.name, SBOM)
        document = bill_of_materials(Path(self.root), self.metadata.version)
        sbom.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        build_data["sbom_files"].append(str(sbom))
        self._add_jar(build_data)
        self._add_site(build_data)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the generated files, which the wheel contains now."""
        self._directory.cleanup()

    def _add_jar(self, build_data: dict[str, Any]) -> None:
        spark_jars = os.environ.get("ARIANE_SPARK_JARS")
        if not spark_jars:
            return
        spec = importlib.util.spec_from_file_location("compilation", Path(self.root, COMPILATION))
        assert spec is not None and spec.loader is not None
        compilation = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(compilation)
        jar = Path(self._directory.name, Path(JAR).name)
        try:
            compilation.compile_jar("javac", Path(spark_jars), jar)
        except subprocess.CalledProcessError as error:
            error.add_note(f"ARIANE_SPARK_JARS = {spark_jars}: {error.stderr}")
            raise
        build_data["force_include"][str(jar)] = JAR

    def _add_site(self, build_data: dict[str, Any]) -> None:
        name = os.environ.get("ARIANE_SITE")
        if not name:
            return
        site = Path(self.root, name)
        if not (site / "index.html").is_file():
            raise FileNotFoundError(f"ARIANE_SITE: no index.html in {site}: run `mkdocs build --strict` first")
        for path in site.rglob("*"):
            if path.is_file() and path.suffix not in OMITTED:
                build_data["shared_data"][str(path)] = f"{TARGET}/{path.relative_to(site).as_posix()}"


def bill_of_materials(root: Path, version: str) -> dict[str, Any]:
    """Return the components of the wheel (CycloneDX 1.6): its vendored files, and the packages that this version is tested with.

    The same sources give the same document: it has no time, and its serial number follows from its content.
    """
    components = _vendored(root / VENDORED) + _locked((root / LOCK).read_text(encoding="utf-8"))
    wheel = _component("pypi", "ariane", version) | {"licenses": [{"license": {"id": "Apache-2.0"}}]}
    name = json.dumps([wheel, components], sort_keys=True)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, name)}",
        "version": 1,
        "metadata": {"component": wheel},
        "components": components,
        "dependencies": [
            {"ref": wheel["bom-ref"], "dependsOn": [component["bom-ref"] for component in components]},
            *({"ref": component["bom-ref"]} for component in components),
        ],
    }


def _vendored(directory: Path) -> list[dict[str, Any]]:
    """Return the packages whose files the wheel contains, each with the hashes of its files."""
    packages: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for entry in json.loads((directory / "manifest.json").read_text(encoding="utf-8")):
        hashes = [{"alg": "SHA-256", "content": entry["sha256"]}]
        file = {"type": "file", "name": entry["file"], "hashes": hashes}
        packages.setdefault((entry["package"], entry["version"]), []).append(file)
    return [
        _component("npm", name, version) | {"scope": "required", "components": files}
        for (name, version), files in packages.items()
    ]


def _locked(lock: str) -> list[dict[str, Any]]:
    """Return the packages of the lock file. They are not in the wheel, and an installation may have others."""
    return [
        _component("pypi", name, version) | {"scope": "optional"}
        for name, version in dict.fromkeys(PINNED.findall(lock))
    ]


def _component(kind: str, name: str, version: str) -> dict[str, Any]:
    purl = f"pkg:{kind}/{name}@{version}"
    return {"type": "library", "name": name, "version": version, "purl": purl, "bom-ref": purl}


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
