"""The wheel contains everything that the installed package reads: templates, styles, scripts, translations, Java sources. Its
metadata has links that work outside of the repository.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest

pytest.importorskip("hatchling", reason="needs hatchling, which requirements.lock contains")

from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "ariane"
DATA = ("console/templates", "console/static", "console/texts/translations", "spark/pruning", "testing/peers")
GENERATED = {".pyc"}


@pytest.fixture(scope="module")
def included() -> set[str]:
    """Paths in the wheel, as the build backend lists them without building it."""
    builder = WheelBuilder(str(ROOT))
    with builder.config.set_build_data({"artifacts": [], "force_include": {}, "build_hooks": ()}):
        return {file.distribution_path for file in builder.recurse_included_files()}


def test_every_module_is_in_the_wheel(included: set[str]) -> None:
    modules = {f"ariane/{path.relative_to(PACKAGE).as_posix()}" for path in PACKAGE.rglob("*.py")}
    assert modules - included == set()


@pytest.mark.parametrize("directory", DATA)
def test_every_data_file_is_in_the_wheel(included: set[str], directory: str) -> None:
    """Ignore rules of git apply to the wheel, too: `dist/` in a rule would omit a vendored script."""
    files = [path for path in (PACKAGE / directory).rglob("*") if path.is_file() and path.suffix not in GENERATED]
    assert files, f"{directory} is empty"
    names = {f"ariane/{path.relative_to(PACKAGE).as_posix()}" for path in files}
    assert names - included == set()


def test_the_documentation_is_in_the_wheel_if_it_was_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    (site / "assets").mkdir(parents=True)
    for name in ("index.html", "api.html", "assets/style.css", "assets/script.js.map"):
        (site / name).write_text(name)
    monkeypatch.setenv("ARIANE_SITE", str(site))
    [wheel] = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    names = {name.split(".data/data/")[1] for name in ZipFile(wheel).namelist() if ".data/data/" in name}
    assert names == {f"share/doc/ariane/{name}" for name in ("index.html", "api.html", "assets/style.css")}

    monkeypatch.setenv("ARIANE_SITE", str(tmp_path / "other"))
    with pytest.raises(FileNotFoundError, match="no index.html in .*other: run `mkdocs build --strict` first"):
        list(WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"]))


def test_the_bill_of_materials_names_vendored_files_and_locked_packages(tmp_path: Path) -> None:
    [wheel] = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if ".dist-info/sboms/" in name]
        bill = json.loads(archive.read(name))
        contents = {path: hashlib.sha256(archive.read(path)).hexdigest() for path in archive.namelist()}
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    files = {
        f"ariane/console/static/vendor/{file['name']}": file["hashes"][0]["content"]
        for component in bill["components"]
        for file in component.get("components", ())
    }
    vendored = {path for path in contents if "/vendor/" in path and not path.endswith("manifest.json")}
    assert files == {path: contents[path] for path in vendored}
    locked = {line.split(" ")[0] for line in (ROOT / "requirements.lock").read_text().splitlines() if "==" in line}
    packages = {f"{part['name']}=={part['version']}" for part in bill["components"] if part["scope"] == "optional"}
    assert packages == locked


@pytest.mark.skipif(shutil.which("javac") is None, reason="needs a Java compiler")
def test_the_jar_for_spark_is_in_the_wheel_if_the_jars_of_spark_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyspark = pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")
    monkeypatch.setenv("ARIANE_SPARK_JARS", str(Path(pyspark.__file__).parent / "jars"))
    [wheel] = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with ZipFile(wheel) as archive, archive.open("ariane/spark/pruning/ariane-spark.jar") as file:
        assert "ariane/spark/ColumnPruning$Messages.class" in ZipFile(file).namelist()

    monkeypatch.setenv("ARIANE_SPARK_JARS", str(tmp_path))
    with pytest.raises(subprocess.CalledProcessError) as failed:
        list(WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"]))
    assert f"ARIANE_SPARK_JARS = {tmp_path}: " in failed.value.__notes__[0]


def test_the_script_that_spark_runs_is_executable(tmp_path: Path) -> None:
    [wheel] = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with ZipFile(wheel) as archive:
        assert archive.getinfo("ariane/spark/worker-python").external_attr >> 16 & 0o111 == 0o111


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-spark.lock", "requirements-dev.lock"])
def test_each_locked_package_has_hashes(lock: str) -> None:
    text = (ROOT / lock).read_text(encoding="utf-8")
    packages = re.split(r"^(?=[\w.-]+==)", text, flags=re.MULTILINE)[1:]
    assert packages
    assert [package.split()[0] for package in packages if "--hash=sha256:" not in package] == []


def test_each_crate_of_a_registry_has_a_checksum() -> None:
    crates = tomllib.loads((ROOT / "native" / "Cargo.lock").read_text(encoding="utf-8"))["package"]
    assert [crate["name"] for crate in crates if "source" in crate and "checksum" not in crate] == []


def test_links_lead_to_the_files_of_this_version_in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    repository = "https://git.example/team/ariane"
    monkeypatch.setenv("ARIANE_REPOSITORY", f"{repository}/")
    project = WheelBuilder(str(ROOT)).metadata.core
    links = re.findall(r"\]\(([^)\s]+)", project.readme)
    assert len(links) >= 10
    for link in [*links, project.urls["Documentation"], project.urls["Changelog"]]:
        found = re.fullmatch(rf"{repository}/(raw|blob)/v{re.escape(project.version)}/(.+)", link)
        assert found, link
        assert (ROOT / found[2].partition("#")[0]).exists(), link
        assert (found[1] == "raw") == found[2].endswith((".png", ".svg")), link
    assert project.urls["Homepage"] == repository


def test_links_are_relative_without_a_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ARIANE_REPOSITORY", raising=False)
    project = WheelBuilder(str(ROOT)).metadata.core
    assert project.readme == (ROOT / "README.md").read_text(encoding="utf-8")
    assert project.urls == {}


def test_tests_and_benches_are_not_in_the_wheel(included: set[str]) -> None:
    assert {name.split("/")[0] for name in included} == {"ariane", "pyspark_rocketmq", "pyspark_rocketmq_store"}
