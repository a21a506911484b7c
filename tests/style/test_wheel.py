"""The wheel contains everything that the installed package reads: templates, styles, scripts, translations, Java sources."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("hatchling", reason="needs hatchling, which requirements.lock contains")

from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "ariane"
DATA = ("console/templates", "console/static", "console/translations", "testing/peers")
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


def test_tests_and_benches_are_not_in_the_wheel(included: set[str]) -> None:
    assert {name.split("/")[0] for name in included} == {"ariane", "pyspark_rocketmq", "pyspark_rocketmq_store"}
