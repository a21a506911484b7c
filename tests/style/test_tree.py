"""Project rules that no linter covers: package names, module docstrings, lengths, forbidden text."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "ariane"
MODULES = sorted(PACKAGE.rglob("*.py"))
BYTES_MAX = 1_000_000  # larger things are made, not kept
NAMES_MAX = 16  # about fifteen, so that a reader sees which one to open
TOP_NAMES_MAX = 35  # of the package itself: the public modules, and one name for each package of docs/architecture.md
LINES_MAX = 500  # mostly under 400; a file that needs more is two files

# Names that say nothing about the contents. Manager, Handler, Processor, Factory are RocketMQ's and Python's own words.
EMPTY_NAMES = {"utils", "util", "common", "helpers", "helper", "base", "misc", "shared", "core", "lib"}
EMPTY_SUFFIXES = ("Impl", "Helper", "Wrapper", "Util", "Utils", "Misc")

# Paths and hosts of one machine, and lines about who wrote a line. Written in parts, so that this file passes.
FORBIDDEN = re.compile(
    "|".join(
        (
            r"/" + r"work/",
            r"/" + r"home/[a-z]",
            r"/" + r"Users/",
            r"/" + r"opt/wheels",
            r"(?i:co-authored" + r"-by)",
            r"files\.python" + r"hosted\.org",
            r"--(?:extra-)?index" + r"-url",
        )
    )
)


def kept_files() -> list[Path]:
    """Return files that git tracks or would track; in a tree without git, all but generated files."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode == 0:
        files = [ROOT / name.decode() for name in listed.stdout.split(b"\0") if name]
    else:
        files = [p for p in ROOT.rglob("*") if not any(part.startswith(".") for part in p.relative_to(ROOT).parts[:-1])]
    return sorted(p for p in files if p.is_symlink() or p.is_file())


def texts() -> list[tuple[Path, str]]:
    results = []
    for path in kept_files():
        if path.is_symlink():
            continue  # test_no_file_is_a_symbolic_link
        try:
            results.append((path, path.read_text(encoding="utf-8")))
        except UnicodeDecodeError:
            continue  # captured bytes
    return results


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_no_file_names_a_machine_or_an_author():
    seen = texts()
    assert len(seen) > 100, "the list of files is not the repository's"
    faults = [
        f"{shown(path)}:{number}: {match.group()}"
        for path, text in seen
        for number, line in enumerate(text.splitlines(), 1)
        if (match := FORBIDDEN.search(line))
    ]
    assert faults == []


def test_no_file_is_a_symbolic_link():
    """Guard against links to a directory of one machine, such as a virtual environment: a checkout replaces what is there."""
    assert [shown(path) for path in kept_files() if path.is_symlink()] == []


def test_the_rule_detects_forbidden_text():
    assert FORBIDDEN.search("see /" + "work/main/x")
    assert FORBIDDEN.search("Co-Authored" + "-By: someone")
    assert not FORBIDDEN.search("a workload at home/work")


def test_no_package_or_module_has_an_empty_name():
    assert [shown(path) for path in PACKAGE.rglob("*") if path.stem in EMPTY_NAMES] == []


def test_no_class_has_an_empty_suffix():
    faults = [
        f"{shown(path)}: {node.name}"
        for path in MODULES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ClassDef) and node.name.endswith(EMPTY_SUFFIXES)
    ]
    assert faults == []


def test_every_module_has_a_docstring():
    assert [shown(path) for path in MODULES if not ast.get_docstring(tree_of(path))] == [], "it says what the module is"


def test_every_module_has_a_readable_size():
    sizes = {shown(path): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert {path: size for path, size in sizes.items() if size > LINES_MAX} == {}


def test_every_package_has_an_init():
    packages = {path.parent for path in MODULES}
    assert [shown(package) for package in packages if not (package / "__init__.py").exists()] == []


def test_a_folder_shows_few_names():
    names: dict[Path, set[str]] = defaultdict(set)
    # Not what is on the disk: a folder that was moved leaves its __pycache__ where it was.
    for file in kept_files():
        if file.is_relative_to(PACKAGE) and "__pycache__" not in file.parts:
            for item in (file, *file.parents):
                names[item.parent].add(item.name)
                if item.parent == PACKAGE:
                    break
    top = names.pop(PACKAGE)
    assert {shown(path): len(items) for path, items in names.items() if len(items) > NAMES_MAX} == {}
    assert len(top) <= TOP_NAMES_MAX, "a new package is a new public path: put it into one that exists"


def test_the_architecture_page_shows_the_present_folders():
    tree = subprocess.run(
        [sys.executable, ROOT / "scripts" / "structure"], capture_output=True, text=True, check=True
    ).stdout
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert tree in page, "run scripts/structure --write"


def test_no_file_is_large():
    # Vendored files are as large as their packages make them; scripts/vendor-assets lists them.
    files = [path for path in kept_files() if "vendor" not in path.parts]
    assert [shown(path) for path in files if path.stat().st_size > BYTES_MAX] == []


def test_servers_never_execute_or_unpickle_data():
    """Guard against CVE-2023-33246 and the like: a server that cannot start a program cannot be made to."""
    servers = ("broker", "nameserver", "settings", "net", "store", "protocol", "client", "filter", "model")
    forbidden = {"subprocess", "pickle", "marshal", "shelve", "multiprocessing"}
    faults = []
    for path in (p for p in MODULES if p.relative_to(PACKAGE).parts[0] in servers):
        for node in ast.walk(tree_of(path)):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec"):
                names = [node.func.id]
            faults += [f"{shown(path)}: {n}" for n in names if n.split(".")[0] in forbidden or n in ("eval", "exec")]
    assert faults == []
