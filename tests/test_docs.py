"""The documentation points at things that exist, and nothing of it is hidden."""

import re

import pytest
from conftest import ROOT

PAGES = [
    page
    for pattern in ("*.md", "docs/*.md", "bench/*.md", "native/*/*.md")
    for page in sorted(ROOT.glob(pattern))
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_that_are_named_exist(page):
    text = page.read_text()
    paths = re.findall(r"`((?:src|native|tests|bench|scripts|docs|examples)/[\w./-]+)`", text)
    missing = [p for p in paths if not (ROOT / p).exists() and not (page.parent / p).exists()]
    assert missing == []


def test_the_reading_order_has_every_page():
    order = (ROOT / "docs" / "README.md").read_text()
    pages = {page.name for page in ROOT.glob("docs/*.md")} - {"README.md"}
    assert [name for name in sorted(pages) if f"({name})" not in order] == []


def test_the_readme_repeats_the_table_of_models():
    row = re.compile(r"^\| ([\d.]+B) \|(.*)\|$", re.MULTILINE)
    readme = dict(row.findall((ROOT / "README.md").read_text()))
    models = dict(row.findall((ROOT / "docs" / "models.md").read_text()))
    assert readme.keys() == models.keys() != set()
    for size, cells in readme.items():
        file, int8, bf16, session = (cell.strip() for cell in cells.split("|"))
        assert [cell.strip() for cell in models[size].split("|")][-4:] == [
            file,
            int8,
            bf16,
            session,
        ]
