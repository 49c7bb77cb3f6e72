"""The documentation is current and its links lead somewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs import karpenter_map, metrics, scheduling_pictures, settings, troubleshooting

ROOT = Path(__file__).parents[3]
LINK = re.compile(r"(?<!`)!?\[[^\]]*\]\(([^)#\s]+)(?:#[^)\s]*)?\)")
README_LINES = 130


@pytest.mark.parametrize("generator", [metrics, settings, troubleshooting], ids=lambda module: module.__name__)
def test_generated_pages_are_current(generator):
    """`make metrics`, `make settings` and `make troubleshooting` write them."""
    assert generator.PAGE.read_text() == generator.page()


def test_the_karpenter_map_is_current_and_has_no_dead_reference():
    """`make karpenter-map` writes it; each file, symbol and spec that we cite exists in Karpenter."""
    index = karpenter_map.read_index()

    assert karpenter_map.dead(list(karpenter_map.references(index)), index) == []
    assert karpenter_map.unknown_specs(list(karpenter_map.cited()), index) == []
    assert karpenter_map.PAGE.read_text() == karpenter_map.page(index)


def test_the_picture_of_the_worked_example_shows_todays_answers():
    """`make pictures` draws it."""
    assert scheduling_pictures.PICTURE.read_text() == scheduling_pictures.picture()


@pytest.mark.parametrize(
    "page",
    sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("infra/**/*.md")]),
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_relative_links_lead_to_files(page):
    """Also those that leave docs/, which the site's builder does not check."""
    targets = [found for found in LINK.findall(page.read_text()) if "://" not in found]

    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_readme_is_short():
    """It leads to the pages; what is long belongs there."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= README_LINES


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    """`make docs`: strict mode fails on unknown pages, links and anchors."""
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "-q",
        "-f",
        str(ROOT / ".mkdocs.yml"),
        "-d",
        str(tmp_path / "site"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "scheduling" / "index.html").exists()
