"""Reads the texts of an Excel file, also of one that Apache's dashboard wrote."""

from __future__ import annotations

import io
import re
import zipfile
from xml.etree import ElementTree

MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"


def read_sheet(content: bytes) -> dict[str, object]:
    """Return the name of the first sheet and its rows: the text of each cell, "" if it is missing."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.testzip() is None
        shared = []
        if "xl/sharedStrings.xml" in archive.namelist():
            items = ElementTree.fromstring(archive.read("xl/sharedStrings.xml"))
            shared = ["".join(item.itertext()) for item in items]
        workbook = ElementTree.fromstring(archive.read("xl/workbook.xml"))
        sheet = ElementTree.fromstring(archive.read("xl/worksheets/sheet1.xml"))
    name = next(workbook.iter(f"{MAIN}sheet")).attrib["name"]
    assert not list(sheet.iter(f"{MAIN}f")), "a cell is a formula"
    return {"sheet": name, "rows": [_texts(row, shared) for row in sheet.iter(f"{MAIN}row")]}


def _texts(row: ElementTree.Element, shared: list[str]) -> list[str]:
    texts: list[str] = []
    for cell in row.iter(f"{MAIN}c"):
        letters = re.sub(r"\d", "", cell.attrib["r"])
        column = 0
        for letter in letters:
            column = column * 26 + ord(letter) - ord("A") + 1
        texts += [""] * (column - len(texts))
        text = "".join(cell.itertext())
        texts[column - 1] = shared[int(text)] if cell.get("t") == "s" else text
    return texts
