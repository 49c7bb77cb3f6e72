"""Write docs/karpenter-map.md: where each of Karpenter's controllers and scheduling symbols is restated here.

`make karpenter-map` runs it. The page comes from two sources: the `Restates:` lines of our docstrings, and
docs/karpenter-symbols.json, an index of Karpenter's Go files (symbols, and a digest of each test title). The index is
renewed with `python -m docs.karpenter_map index KARPENTER_CHECKOUT PROVIDER_AWS_CHECKOUT`.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from docs.karpenter_untried import UNTRIED

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Untried = Mapping[str, Mapping[str, tuple[str, ...]]]
"""By spec file, as a marker names it: titles by the reason for which no test restates them."""

ROOT: Final = Path(__file__).parents[1]
INDEX: Final = Path(__file__).with_name("karpenter-symbols.json")
PAGE: Final = Path(__file__).with_name("karpenter-map.md")
SOURCES: Final = ("shared", "infra")
KARPENTER: Final = "karpenter"
REPOSITORIES: Final = (KARPENTER, "karpenter-provider-aws")
MAPPED: Final = re.compile(r"pkg/(controllers|scheduling)/")
"""Files of Karpenter's core whose exported symbols the page lists, restated or not."""
COMPLETE: Final = re.compile(r"pkg/controllers/(nodeclaim/)?disruption/")
"""Suites of which every file must have an entry in docs/karpenter_untried.py, also one that Karpenter adds."""

_LINE: Final = re.compile(r"Restates:\s*(.+?)(?=\n\s*\n|\n\s*[A-Z][a-z]+:\s|\Z)", re.DOTALL)
_TOKEN: Final = re.compile(
    r"(?P<folder>pkg(?:/[\w-]+)+)(?= \()|(?P<path>[\w.-]*(?:/(?:[\w.-]+|\{[^}]*\}))*/?(?:[\w-]+|\{[^}]*\})\.go)(?![\w])|`(?P<symbol>[^`]+)`|(?P<clause>;)"
    r"|(?P<repository>[\w.-]+(?:/[\w.-]+)*)\s+(?=(?:pkg|staging|cel|status|resource|plugins|typed|apis)/)"
)
_SYMBOL: Final = re.compile(
    r"^(?:func (?:\(\w+ \*?(?P<owner>\w+)(?:\[[^]]*\])?\) )?(?P<function>\w+)|type (?P<type>\w+)"
    r"|(?:var|const) (?P<value>\w+)|\t(?P<grouped>\w+)\s*(?:[\w.\[\]*]+\s*)?=)",
    re.MULTILINE,
)
_SPEC: Final = re.compile(r"\b(?:It|Entry|DescribeTable)\(\s*\"((?:[^\"\\]|\\.)*)\"|\b(?:It|Entry)\(\s*`([^`]*)`")


class Reference(NamedTuple):
    """One place of Karpenter's that a docstring of ours names; `symbol` is empty where it names the whole file."""

    repository: str
    path: str
    symbol: str
    ours: str


class Context(NamedTuple):
    """The repository and the file or folder that a line named last."""

    repository: str
    path: str


class Cited(NamedTuple):
    """One spec that a test of ours says it restates."""

    spec: str
    title: str
    test: str


def read_index() -> dict[str, Any]:
    """Return the index: by repository its commit and, by path, the file's `symbols` and `specs` (digests of titles)."""
    index: dict[str, Any] = json.loads(INDEX.read_text(encoding="utf-8"))
    return index


def digest(title: str) -> str:
    """Return what stands for a spec's title in the index."""
    return hashlib.sha256(title.encode()).hexdigest()[:8]


# -- our references -----------------------------------------------------------------------------------------------


def references(index: Mapping[str, Any]) -> Iterator[Reference]:
    """Yield what our docstrings say they restate of Karpenter, in the order of our files."""
    for source in SOURCES:
        for file in sorted((ROOT / source).rglob("*.py")):
            module, context = str(file.relative_to(ROOT)), Context(KARPENTER, "")
            text = file.read_text(encoding="utf-8")
            if "Restates:" not in text:  # parsing takes time, and few files have such a line
                continue
            for name, docstring in _docstrings(ast.parse(text)):
                for line in _LINE.finditer(docstring):
                    found, last = _parse(line[1], f"{module}:{name}" if name else module, index, context)
                    yield from found
                    context = context if name else last


def _docstrings(tree: ast.Module) -> Iterator[tuple[str, str]]:
    yield "", ast.get_docstring(tree) or ""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for part in node.body:
                if isinstance(part, ast.FunctionDef):
                    yield f"{node.name}.{part.name}", ast.get_docstring(part) or ""
            yield node.name, ast.get_docstring(node) or ""
    for part in tree.body:
        if isinstance(part, ast.FunctionDef):
            yield part.name, ast.get_docstring(part) or ""


def _parse(text: str, ours: str, index: Mapping[str, Any], context: Context) -> tuple[list[Reference], Context]:
    """Return the references of one line, and what a bare file name after it belongs to.

    A bare file name is looked for in the folder that was named last, on the line or in the module's docstring.
    """
    found: list[Reference] = []
    repository, path, cited = context.repository, context.path, True
    for token in _TOKEN.finditer(text):
        if token["repository"]:
            repository = token["repository"]
        elif token["folder"]:
            path, cited = f"{token['folder']}/", True
        elif token["path"]:
            if not cited:
                found.append(Reference(repository, path, "", ours))
            *others, last = (
                _located(p, path, index.get(repository, {}).get("files", {})) for p in _expanded(token["path"])
            )
            found += [Reference(repository, other, "", ours) for other in others]
            path, cited = last, False
        elif token["symbol"] and path.endswith(".go"):
            found.append(Reference(repository, path, token["symbol"], ours))
            cited = True
    if not cited:
        found.append(Reference(repository, path, "", ours))
    return [reference for reference in found if reference.repository in REPOSITORIES], Context(repository, path)


def _expanded(path: str) -> list[str]:
    """Return the paths that one with `{a,b}` stands for."""
    found = re.search(r"\{([^}]*)\}", path)
    if not found:
        return [path]
    return [path[: found.start()] + part.strip() + path[found.end() :] for part in found[1].split(",")]


def _located(path: str, before: str, files: Mapping[str, Any]) -> str:
    """Return the full path of a file that is named in full, beside the one before it, or by a unique ending."""
    if path in files:
        return path
    beside = f"{before.rpartition('/')[0]}/{path}" if before else path
    if beside in files:
        return beside
    ending = [known for known in files if known.endswith(f"/{path}")]
    return ending[0] if len(ending) == 1 else path


def dead(found: list[Reference], index: Mapping[str, Any]) -> list[str]:
    """Return one line for each reference to a file or symbol that the index does not have."""
    lines = []
    for reference in found:
        file = index[reference.repository]["files"].get(reference.path)
        if file is None:
            lines.append(f"{reference.ours}: {reference.repository} has no file {reference.path}")
        elif reference.symbol and not _has(file["symbols"], reference.symbol):
            lines.append(f"{reference.ours}: {reference.path} has no symbol {reference.symbol}")
    return lines


def _has(symbols: list[str], name: str) -> bool:
    return any(symbol == name or symbol.endswith(f".{name}") for symbol in symbols)


# -- specs that our tests cite ------------------------------------------------------------------------------------


def cited() -> Iterator[Cited]:
    """Yield the specs that tests of ours restate, as tests/karpenter_specs.toml lists them."""
    listed = tomllib.loads((ROOT / "tests" / "karpenter_specs.toml").read_text(encoding="utf-8"))
    for file, tests in listed.items():
        for titles in tests.values():
            for title in titles:
                spec, _, name = title.partition(": ")
                yield Cited(spec, name, file)


def spec_file(spec: str, index: Mapping[str, Any]) -> str:
    """Return the path of the Go test file that a marker names, empty if there is none.

    `disruption/emptiness` is pkg/controllers/disruption/emptiness_test.go, `scheduling/taints` pkg/scheduling/taints_test.go,
    and a folder, as `node/health` or `utils/pdb`, its suite_test.go below either.
    """
    endings = ("_test.go", "/suite_test.go")
    for repository in REPOSITORIES:
        files = index[repository]["files"]
        for path in (f"{root}/{spec}{ending}" for root in ("pkg/controllers", "pkg") for ending in endings):
            if path in files:
                return f"{repository} {path}"
    return ""


def unknown_specs(found: list[Cited], index: Mapping[str, Any]) -> list[str]:
    """Return one line for each citation of a spec that Karpenter does not have."""
    lines = []
    for each in found:
        where = spec_file(each.spec, index)
        if not where:
            lines.append(f"{each.test}: Karpenter has no spec file {each.spec!r}")
            continue
        repository, _, path = where.partition(" ")
        if digest(each.title) not in index[repository]["files"][path]["specs"]:
            lines.append(f"{each.test}: {path} has no spec {each.title!r}")
    return lines


def unlisted_suites(index: Mapping[str, Any], untried: Untried = UNTRIED) -> list[str]:
    """Return one line for each file of the suites of `COMPLETE` that `untried` does not have, so that no spec is checked."""
    known = {spec_file(spec, index) for spec in untried}
    files = (f"{KARPENTER} {path}" for path, file in sorted(index[KARPENTER]["files"].items()) if file["specs"])
    return [
        f"docs/karpenter_untried.py has no entry for {file.partition(' ')[2]}"
        for file in files
        if COMPLETE.match(file.partition(" ")[2]) and file not in known
    ]


def unexplained_specs(found: list[Cited], index: Mapping[str, Any], untried: Untried = UNTRIED) -> list[str]:
    """Return one line for each spec of the files in `untried` that is neither cited nor listed, or that is both."""
    lines = []
    for spec, by_reason in untried.items():
        where = spec_file(spec, index)
        if not where:
            lines.append(f"docs/karpenter_untried.py: Karpenter has no spec file {spec!r}")
            continue
        repository, _, path = where.partition(" ")
        cited_titles = {each.title for each in found if spec_file(each.spec, index) == where}
        listed = [title for titles in by_reason.values() for title in titles]
        known = index[repository]["files"][path]["specs"]
        explained = {digest(title) for title in (*cited_titles, *listed)}
        for title in listed:
            if digest(title) not in known:
                lines.append(f"docs/karpenter_untried.py: {path} has no spec {title!r}")
            if title in cited_titles or listed.count(title) > 1:
                lines.append(f"docs/karpenter_untried.py: {path}: {title!r} is cited by a test, or listed twice")
        lines += [
            f"{path}: no test cites the spec with the digest {each}, and docs/karpenter_untried.py does not list it"
            for each in known
            if each not in explained
        ]
    return lines


# -- the page -----------------------------------------------------------------------------------------------------


def page(index: Mapping[str, Any]) -> str:
    """Return the page's text."""
    found = list(references(index))
    by_file: dict[tuple[str, str], list[Reference]] = defaultdict(list)
    for reference in found:
        by_file[reference.repository, reference.path].append(reference)
    parts = [*_head(index), *_core(index, by_file), *_provider(by_file), *_specs(index), *_untried(index)]
    return "\n".join(parts) + "\n"


def _head(index: Mapping[str, Any]) -> list[str]:
    commits = ", ".join(f"{name} at {index[name]['commit'][:9]}" for name in REPOSITORIES)
    return [
        "# From Karpenter to Journeyman",
        "",
        "Generated from the `Restates:` lines of our docstrings by `make karpenter-map`; do not edit.",
        f"Compared with {commits}.",
        "",
        "Find a Go file or symbol of Karpenter's and follow it to the code that restates it. “Not restated by name” lists the",
        "exported symbols that no docstring of ours cites: plumbing of a long-running controller that a function does not need,",
        "or a rule that our code states in other terms.",
        "",
        "## Controllers and scheduling",
        "",
    ]


def _core(index: Mapping[str, Any], by_file: Mapping[tuple[str, str], list[Reference]]) -> Iterator[str]:
    files = index[KARPENTER]["files"]
    for path in sorted(path for path in files if MAPPED.match(path) and not path.endswith("_test.go")):
        exported = [symbol for symbol in files[path]["symbols"] if symbol.rpartition(".")[2][:1].isupper()]
        if not exported:
            continue
        yield f"### {path}"
        ours = by_file.get((KARPENTER, path), [])
        for symbol, places in sorted(_by_symbol(ours).items()):
            yield f"- {f'`{symbol}`' if symbol else 'the file'} → {', '.join(_link(place) for place in sorted(places))}"
        missing = [s for s in exported if not any(_has([s], r.symbol) for r in ours if r.symbol)]
        if missing:
            yield f"- Not restated by name: {', '.join(f'`{symbol}`' for symbol in missing)}"
        yield ""


def _by_symbol(found: list[Reference]) -> dict[str, set[str]]:
    places: dict[str, set[str]] = defaultdict(set)
    for reference in found:
        places[reference.symbol].add(reference.ours)
    return places


def _link(place: str) -> str:
    module, _, name = place.partition(":")
    return f"[{f'{name} in ' if name else ''}{module.removeprefix('shared/journeyman/')}](../{module})"


def _provider(by_file: Mapping[tuple[str, str], list[Reference]]) -> Iterator[str]:
    yield "## Karpenter's API, state and helpers, and the AWS provider"
    yield ""
    yield "| Go file | restated in |"
    yield "|---|---|"
    for (repository, path), found in sorted(by_file.items()):
        if repository == KARPENTER and MAPPED.match(path):
            continue
        places = sorted({reference.ours.partition(":")[0] for reference in found})
        yield f"| {repository} {path} | {', '.join(_link(place) for place in places)} |"
    yield ""


def _specs(index: Mapping[str, Any]) -> Iterator[str]:
    counted: dict[str, set[str]] = defaultdict(set)
    for each in cited():
        counted[spec_file(each.spec, index)].add(each.title)
    yield "## Karpenter's specs that our tests cite"
    yield ""
    yield "Tests that restate a spec are listed in `tests/karpenter_specs.toml`. Of the files with a number in the last"
    yield "column, every spec is cited or listed [below](#specs-that-no-test-restates)."
    yield ""
    yield "| spec file | specs | cited | listed with a reason |"
    yield "|---|---:|---:|---:|"
    listed = {spec_file(spec, index): sum(map(len, by_reason.values())) for spec, by_reason in UNTRIED.items()}
    total = [0, 0, 0]
    for repository in REPOSITORIES:
        for path, file in sorted(index[repository]["files"].items()):
            if not path.endswith("_test.go") or not file["specs"]:
                continue
            number = len(counted.get(f"{repository} {path}", ()))
            explained = listed.get(f"{repository} {path}")
            total = [total[0] + len(file["specs"]), total[1] + number, total[2] + (explained or 0)]
            if number or (repository == KARPENTER and MAPPED.match(path)):
                shown = "" if explained is None else explained
                yield f"| {repository} {path} | {len(file['specs'])} | {number} | {shown} |"
    yield f"| all | {total[0]} | {total[1]} | {total[2]} |"
    yield ""


def _untried(index: Mapping[str, Any]) -> Iterator[str]:
    yield "## Specs that no test restates"
    for spec, by_reason in UNTRIED.items():
        if by_reason:
            yield ""
            yield f"### {spec_file(spec, index).partition(' ')[2]}"
            for reason, titles in by_reason.items():
                yield f"- {reason[0].upper()}{reason[1:]}: {'; '.join(titles)}"


# -- the index ----------------------------------------------------------------------------------------------------


def build_index(checkouts: Mapping[str, Path]) -> dict[str, Any]:
    """Return the index of the newest commit of Karpenter's and its AWS provider's Git repositories."""
    return {name: _indexed(path) for name, path in checkouts.items()}


def _indexed(checkout: Path) -> dict[str, Any]:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(checkout), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    files = {}
    for path in git("ls-tree", "-r", "--name-only", "HEAD", "pkg").splitlines():
        if not path.endswith(".go") or "zz_generated" in path:
            continue
        source = git("show", f"HEAD:{path}")
        if path.endswith("_test.go"):
            titles = [first or second for first, second in _SPEC.findall(source)]
            files[path] = {"symbols": [], "specs": sorted({digest(_unescaped(title)) for title in titles})}
        else:
            files[path] = {"symbols": sorted(set(_symbols(source))), "specs": []}
    return {"commit": git("rev-parse", "HEAD").strip(), "files": files}


def _symbols(source: str) -> Iterator[str]:
    for found in _SYMBOL.finditer(source):
        if found["function"]:
            yield f"{found['owner']}.{found['function']}" if found["owner"] else found["function"]
        else:
            yield found["type"] or found["value"] or found["grouped"]


def _unescaped(title: str) -> str:
    return title.replace('\\"', '"').replace("\\\\", "\\")


def main(arguments: list[str]) -> int:
    """Write the page, or the index with `index KARPENTER PROVIDER_AWS`; return 1 where references are dead."""
    if arguments[:1] == ["index"]:
        built = build_index(dict(zip(REPOSITORIES, map(Path, arguments[1:]), strict=True)))
        INDEX.write_text(json.dumps(built, indent=None, separators=(",", ":"), sort_keys=True) + "\n", encoding="utf-8")
    index = read_index()
    found = list(cited())
    findings = [
        *dead(list(references(index)), index),
        *unknown_specs(found, index),
        *unlisted_suites(index),
        *unexplained_specs(found, index),
    ]
    for finding in findings:
        print(finding)
    PAGE.write_text(page(index), encoding="utf-8")
    return min(len(findings), 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
