"""Fail on a class or module name that stands for two things, and on words that the project's glossary replaced.

Run by `make check` as `python -m tests.lint.plain_words`. `docs/glossary.md` has the words to use instead.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("shared/journeyman", "shared/journeyman_simulator", "infra/forwarder")

SAME_ROLE: Final = re.compile(
    r"shared/journeyman/cloud/(aws|alibaba|huawei)/|(?<=shared/journeyman/core/api/)(ec2|ecs|acs_ecs|cce)(?=nodeclass)"
    r"|(?<=nodeclass)_(selectors|status)(?=\.py)"
)
"""Modules and classes of the clouds may share a name with each other: they play the same part, as the NodeClasses' do."""

REPLACED: Final = {
    r"told|(?<!response\.)tells?|telling|tell_\w+": "record, report, say which function returns it",
    r"nobody|somebody|whoever|everybody|anybody": "name the actor: the scheduler, the user, the API server",
    r"story|stories": "scenario",
    r"stalls?|shelf|shelves": "NodePoolOptions, OfferingMask",
    r"rungs?|ladders?": "relaxation level(s)",
    r"wish|wishes": "preference",
    r"regrets?|regretted\w*": "reversed consolidation",
    r"in vain": "had no effect",
    r"behind our back": "external deletion",
    r"at work": "initialized, running",
    r"look again|looks again|look_again": "check again, requeue",
    r"wake-ups?|wakeups?": "requeue message",
    r"hinted|hints? (?:for|of|to) pods|placement hints?": "nominated, pod nomination",
    r"sick|ill|healing|heals?": "unhealthy, repair, remove stale taints",
    r"lanes?": "queue",
    r"the hand": "the executor",
    r"rooms?": "capacity; package",
    r"the house": "architecture",
    r"soundness": "verification",
    r"glued": "co-located",
    r"(?<!\")remarks?(?!\")": "warnings",  # "remarks" in quotes is a key of `journeyman solve`'s answer
    r"dealt|dealing": "distributed, distributing",
    r"spared": "kept",
    r"mutants? in text": "mutation tests",
}

SEARCHED: Final = ("*.py", "*.md", "*.yaml", "*.toml", "*.json", "Makefile", "Dockerfile")
EXEMPT: Final = re.compile(
    r"^(tests/lint/|docs/glossary\.md|docs/karpenter[-_](map\.md|untried\.py)|tests/.*/cases/|tests/karpenter_specs\.toml|events/clusters/|LICENSE)"
)
"""The lint's own words, the glossary, titles of Karpenter's specs, and data of others."""
CLASS: Final = re.compile(r"^ *class (\w+)[(:]", re.MULTILINE)


def tracked(*patterns: str) -> list[Path]:
    """Return the repository's tracked files that match the patterns, sorted."""
    listed = subprocess.run(["git", "ls-files", "--", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return sorted(ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file())


def doubled_names() -> Iterator[str]:
    """Yield one line for each module or class name that the product and its simulator use twice."""
    modules: dict[str, list[Path]] = defaultdict(list)
    classes: dict[str, list[Path]] = defaultdict(list)
    for path in tracked(*(f"{package}/*.py" for package in PACKAGES)):
        if path.name not in {"__init__.py", "__main__.py"}:
            modules[path.stem].append(path)
        for name in CLASS.findall(path.read_text(encoding="utf-8")):
            classes[name].append(path)
    for kind, found in (("module", modules), ("class", classes)):
        for name, paths in sorted(found.items()):
            places = sorted({SAME_ROLE.sub("", str(path.relative_to(ROOT))) for path in paths})
            if len(places) > 1 or (kind == "class" and len(paths) > len(set(paths))):
                yield f"{kind} name {name!r} is used more than once: {', '.join(places)}"


def replaced_words(paths: Iterable[Path]) -> Iterator[str]:
    """Yield one line for each use of a word that the glossary replaced, as `path:line: word: use …`."""

    def whole(words: str) -> re.Pattern[str]:
        return re.compile(rf"(?<![\w-])(?:{words})(?![\w-])", re.IGNORECASE)

    patterns, any_of_them = {whole(words): use for words, use in REPLACED.items()}, whole("|".join(REPLACED))
    for path in paths:
        name = str(path.relative_to(ROOT))
        if EXEMPT.match(name):
            continue
        text = path.read_text(encoding="utf-8")
        if not any_of_them.search(text):  # as in nearly all files, and much faster than line by line
            continue
        for number, line in enumerate(text.splitlines(), start=1):
            for pattern, use in patterns.items():
                if found := pattern.search(line):
                    yield f"{name}:{number}: {found[0]!r}: use {use}"


def main() -> int:
    """Print what is wrong; return 1 if anything is."""
    findings = [*doubled_names(), *replaced_words(tracked(*SEARCHED))]
    for finding in findings:
        print(finding)
    if findings:
        print(f"{len(findings)} finding(s); docs/glossary.md has the words to use")
    return min(len(findings), 1)


if __name__ == "__main__":
    sys.exit(main())
