"""The code blocks of the documentation, and its links."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import ROOT

PAGES = (
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "CONTRIBUTING.md",
    ROOT / "benchmarks" / "README.md",
)
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"`((?:flows|tasks|storage|sql|tests|presets|benchmarks|samples|docs)/[\w/.-]+)`")
_LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")


@dataclass(frozen=True)
class Block:
    page: Path
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}: {self.text.strip().splitlines()[0][:60]}"


def blocks(*languages: str) -> list[Block]:
    """Every fenced block in these languages, page by page."""
    found = [Block(page, *match) for page in PAGES for match in _BLOCK.findall(page.read_text())]
    return [block for block in found if block.language in languages]


def commands(program: str, *pages: Path) -> list[str]:
    """Every line of the shell blocks that calls this program, without its comment."""
    lines = [
        line.split(" #")[0].strip()
        for block in blocks("bash", "sh")
        if not pages or block.page in pages
        for line in block.text.splitlines()
    ]
    return [line for line in lines if line.split(" ")[0] == program]


def links(page: Path) -> list[str]:
    return _LINK.findall(page.read_text())


def files(page: Path) -> list[str]:
    """Every file of the project that a page names."""
    return _FILE.findall(page.read_text())
