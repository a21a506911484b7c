"""Writes a table as an Excel file (.xlsx). All texts are inline strings: no cell is ever a formula.

zip: [Content_Types].xml, _rels/.rels, xl/workbook.xml, xl/_rels/workbook.xml.rels, xl/worksheets/sheet1.xml
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterable, Sequence
from xml.sax.saxutils import escape, quoteattr

CELL_MAX = 32_767  # characters; Excel rejects a file with longer texts
CONTENT_TYPE = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"

_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_DOCUMENT = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_HEAD = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_TYPES = (
    f'{_HEAD}<Types xmlns="{_PACKAGE}/content-types">'
    '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    '<Override PartName="/xl/workbook.xml"'
    ' ContentType="application/vnd.openxmlformats-officedocument.spreadsheetml.sheet.main+xml"/>'
    '<Override PartName="/xl/worksheets/sheet1.xml"'
    ' ContentType="application/vnd.openxmlformats-officedocument.spreadsheetml.worksheet+xml"/></Types>'
)
_ROOT = (
    f'{_HEAD}<Relationships xmlns="{_PACKAGE}/relationships">'
    f'<Relationship Id="rId1" Type="{_DOCUMENT}/officeDocument" Target="xl/workbook.xml"/></Relationships>'
)
_WORKBOOK_RELATIONS = (
    f'{_HEAD}<Relationships xmlns="{_PACKAGE}/relationships">'
    f'<Relationship Id="rId1" Type="{_DOCUMENT}/worksheet" Target="worksheets/sheet1.xml"/></Relationships>'
)

Cell = str | int | None


def spreadsheet(name: str, header: Sequence[str], rows: Iterable[Sequence[Cell]]) -> bytes:
    """Return a file with one sheet.

    Args:
        rows: Cells of each further row; None is an empty cell. A text that is too long for Excel is cut and says so.
    """
    workbook = (
        f'{_HEAD}<workbook xmlns="{_MAIN}" xmlns:r="{_DOCUMENT}"><sheets>'
        f'<sheet name={quoteattr(name)} sheetId="1" r:id="rId1"/></sheets></workbook>'
    )
    lines = "".join(_row(number, cells) for number, cells in enumerate([header, *rows], 1))
    sheet = f'{_HEAD}<worksheet xmlns="{_MAIN}"><sheetData>{lines}</sheetData></worksheet>'
    parts = {
        "[Content_Types].xml": _TYPES,
        "_rels/.rels": _ROOT,
        "xl/workbook.xml": workbook,
        "xl/_rels/workbook.xml.rels": _WORKBOOK_RELATIONS,
        "xl/worksheets/sheet1.xml": sheet,
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in parts.items():
            archive.writestr(path, text)
    return buffer.getvalue()


def _row(number: int, cells: Sequence[Cell]) -> str:
    texts = "".join(_cell(f"{_column(column)}{number}", cell) for column, cell in enumerate(cells))
    return f'<row r="{number}">{texts}</row>'


def _cell(place: str, cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, int):
        return f'<c r="{place}"><v>{cell}</v></c>'
    text = escape(_fitting(_NOT_IN_XML.sub("�", cell)))
    return f'<c r="{place}" t="inlineStr"><is><t xml:space="preserve">{text}</t></is></c>'


def _fitting(text: str) -> str:
    if len(text) <= CELL_MAX:
        return text
    note = f"… ({len(text):,} characters, the rest is omitted)"
    return text[: CELL_MAX - len(note)] + note


def _column(number: int) -> str:
    """Return the letters of a column, from 0: A to Z, AA and so on."""
    letters = ""
    number += 1
    while number:
        number, rest = divmod(number - 1, 26)
        letters = chr(ord("A") + rest) + letters
    return letters
