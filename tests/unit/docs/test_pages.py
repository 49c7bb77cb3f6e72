"""The generated pages are current and all links are valid."""

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


@pytest.mark.slow
def test_karpenter_map_is_current_and_has_no_dead_reference():
    """`make karpenter-map` writes it; each cited file, symbol and spec exists in Karpenter."""
    index = karpenter_map.read_index()

    assert karpenter_map.dead(list(karpenter_map.references(index)), index) == []
    assert karpenter_map.unknown_specs(list(karpenter_map.cited()), index) == []
    assert karpenter_map.unlisted_suites(index) == []
    assert karpenter_map.unexplained_specs(list(karpenter_map.cited()), index) == []
    assert karpenter_map.PAGE.read_text() == karpenter_map.page(index)


def test_spec_that_is_neither_cited_nor_listed_is_found():
    """So is one that is both, one that Karpenter does not have, and a file that it does not have."""
    index = karpenter_map.read_index()
    title = "should ignore NodePools which aren't managed by this instance of Karpenter"
    cited = [karpenter_map.Cited("nodepool/readiness", title, "test_x.py")]

    def findings(untried):
        return karpenter_map.unexplained_specs(cited, index, untried)

    assert len(findings({"nodepool/readiness": {}})) == 5
    assert len(findings({"nodepool/readiness": {"why": (title,)}})) == 6
    assert len(findings({"nodepool/readiness": {"why": ("should do what it does not",)}})) == 6
    assert findings({"nodepool/none": {}}) == ["docs/karpenter_untried.py: Karpenter has no spec file 'nodepool/none'"]


def test_spec_file_of_disruption_that_is_not_listed_is_found():
    """A file that a later Karpenter adds to the suite must be gone through, too."""
    index = karpenter_map.read_index()
    listed = {spec: reasons for spec, reasons in karpenter_map.UNTRIED.items() if spec != "disruption/queue"}

    found = karpenter_map.unlisted_suites(index, listed)

    assert "docs/karpenter_untried.py has no entry for pkg/controllers/disruption/queue_test.go" in found


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ("disruption/emptiness", "pkg/controllers/disruption/emptiness_test.go"),
        ("node/health", "pkg/controllers/node/health/suite_test.go"),
        ("scheduling/taints", "pkg/scheduling/taints_test.go"),
        ("utils/pdb", "pkg/utils/pdb/suite_test.go"),
        ("utils/no-such-package", ""),
    ],
)
def test_spec_name_resolves_to_its_go_test_file(spec, path):
    """A marker names the file without `pkg/controllers` or `pkg`; a folder is its suite."""
    found = karpenter_map.spec_file(spec, karpenter_map.read_index())
    assert found.rpartition(" ")[2] == path


@pytest.mark.slow
def test_picture_of_the_worked_example_is_current():
    """`make pictures` draws it."""
    assert scheduling_pictures.PICTURE.read_text() == scheduling_pictures.picture()


@pytest.mark.parametrize(
    "page",
    sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("infra/**/*.md")]),
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_relative_links_lead_to_files(page):
    """That includes links out of docs/, which the site's builder does not check."""
    targets = [found for found in LINK.findall(page.read_text()) if "://" not in found]

    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_readme_is_short():
    """Long text belongs into docs/."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= README_LINES


@pytest.mark.slow
def test_site_builds_without_a_warning(tmp_path):
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
