"""scripts/figures: counts of a package, the table of revisions, and the summary of a log of .ci/run."""

from __future__ import annotations

import textwrap
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "figures"
_spec = spec_from_loader("figures", SourceFileLoader("figures", str(SCRIPT)))
assert _spec is not None and _spec.loader is not None
figures = module_from_spec(_spec)
_spec.loader.exec_module(figures)

LOG = """\
ci: installed after 1 min 40 s
ci: checked after 3 min 2 s
tests/unit/test_a.py ...
============================= slowest 20 durations =============================
12.30s call     tests/spark/test_a.py::test_one[x y]
101.00s setup    tests/interop/test_b.py::test_two
ci: tested after 17 min 9 s
"""


def test_rows_count_lines_names_and_shapes(tmp_path: Path) -> None:
    function = """
    def {name}(value):
        '''Not part of the shape.'''
        first = {call}(value)
        if first:
            return first + {number}
        return None
    """
    for folder in ("small", "large", "large/inner"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text('"""A room."""\n')
    text = textwrap.dedent(function)
    (tmp_path / "large" / "a.py").write_text(text.format(name="f", call="abs", number=1))
    (tmp_path / "small" / "b.py").write_text(text.format(name="g", call="len", number=2) + "\n\ndef h(): return 1\n")
    rows = dict(figures.code_rows(tmp_path))
    assert list(rows)[:3] == ["lines of small", "lines of large", "lines of all"]
    assert rows["lines of all"] == "20"
    assert rows["1. folder by names"] == "large 3"
    assert (rows["functions with the shape of an earlier one"], rows["their lines"]) == ("1", "4")


def test_a_row_that_a_revision_lacks_is_empty() -> None:
    table = figures.table({"old": [("lines of a", "1")], "HEAD": [("lines of b", "2"), ("lines of a", "3")]})
    assert table.splitlines() == [
        "| | old | HEAD |",
        "|---|--:|--:|",
        "| lines of b |  | 2 |",
        "| lines of a | 1 | 3 |",
    ]


def test_the_log_of_ci_is_summarised() -> None:
    assert figures.ci_summary(LOG).splitlines() == [
        "ci: installed after 1 min 40 s",
        "ci: checked after 3 min 2 s",
        "ci: tested after 17 min 9 s",
        "  101.0 s  tests/interop/test_b.py::test_two (setup)",
        "   12.3 s  tests/spark/test_a.py::test_one[x y] (call)",
    ]


def test_lines_of_refactorings_count_for_the_package_where_a_file_is_now() -> None:
    log = (
        "3\t10\tsrc/ariane/store/a.py\n1\t2\tsrc/ariane/{old => store}/b.py\n5\t1\tsrc/ariane/net/c.py\n"
        "9\t9\ttests/a.py\n-\t-\tsrc/ariane/console/static/logo.png\n"
    )
    assert figures.refactored(log).splitlines()[2:] == [
        "| store | 4 | 12 | -8 |",
        "| net | 5 | 1 | 4 |",
        "| all | 9 | 13 | -4 |",
    ]
