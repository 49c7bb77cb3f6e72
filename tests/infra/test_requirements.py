"""The layer installs exactly the locked requirements, from any package index."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OF_CLOUDS = {cloud: ROOT / "shared" / f"requirements-{cloud}.txt" for cloud in ("alibaba", "huawei")}
LOCKED = [ROOT / "shared" / "requirements.txt", *OF_CLOUDS.values(), ROOT / "infra" / "forwarder" / "requirements.txt"]
ONLY_ON_AWS = {"boto3", "tomli", "tomli-w"}  # its SDK, and its user data


@pytest.mark.parametrize("path", LOCKED, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_requirement_is_pinned_with_hashes_and_names_no_index(path):
    """The build installs exactly what was reviewed."""
    text = path.read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    assert all(re.match(r"[a-z0-9-]+==\S+ .*--hash=sha256:[0-9a-f]{64}", line) for line in lines)
    assert "index-url" not in text
    assert "://" not in text


def test_the_layer_has_every_dependency_the_package_declares():
    """A dependency that is added to the package must be locked too."""
    declared = re.search(r"^dependencies = \[(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.DOTALL | re.MULTILINE)
    names = {re.split(r"[\[>=<,]", name)[0] for name in re.findall(r'"([^"]+)"', declared[1])}
    locked = {line.partition("==")[0] for line in LOCKED[0].read_text().splitlines() if "==" in line}
    assert names <= locked


@pytest.mark.parametrize("cloud", OF_CLOUDS)
def test_the_layer_of_a_cloud_has_every_dependency_but_those_of_aws(cloud):
    """The package's dependencies and the cloud's extra, without AWS's SDK; the input file says the same."""
    text = (ROOT / "pyproject.toml").read_text()
    declared = re.search(r"^dependencies = \[(.*?)^\]", text, re.DOTALL | re.MULTILINE)
    extra = re.search(rf"^{cloud} = \[(.*?)^\]", text, re.DOTALL | re.MULTILINE)
    names = {
        re.split(r"[\[>=<,;]", name)[0] for name in re.findall(r'^  "([^"]+)"', declared[1] + extra[1], re.MULTILINE)
    }
    path = OF_CLOUDS[cloud]
    wanted = {
        re.split(r"[\[>=<,;]", line)[0]
        for line in path.with_suffix(".in").read_text().splitlines()
        if line and not line.startswith("#")
    }
    locked = {line.partition("==")[0] for line in path.read_text().splitlines() if "==" in line}

    assert wanted == names - ONLY_ON_AWS
    assert wanted <= locked
    assert not locked & {"boto3", "botocore", "aws-xray-sdk"}
