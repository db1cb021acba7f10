"""Adds to the documentation what lies elsewhere in the repository, when MkDocs builds it.

The home page is README.md, the changelog CHANGELOG.md, results are the pages of experiments/, and the reference has
a page for each public module. A link to a file that is no page leads to the public repository, where one is named,
and is plain text otherwise.
"""

import ast
import os
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
NAMED = os.environ.get("REPOSITORY", "")  # owner/name
REPOSITORY = "" if NAMED.startswith("PROJECT_OWNER/") else NAMED  # the Makefile's placeholder names none
PAGES = {"index.md": "README.md", "changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md"}
PAGES["security.md"] = "SECURITY.md"
RESULTS = re.compile(r"^([A-Z_]+):(\w+)$", re.MULTILINE)
LINK = re.compile(r"(!?)\[((?:[^][]|\[[^][]*\])*)\]\(([^)\s]+)\)")
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Completes the navigation by results, reference and changelog."""
    results = [path.relative_to(ROOT).as_posix() for path in _results()]
    reference = [
        {room: [{name.rpartition(".")[2]: _page(name)} for name in names]} for room, names in _rooms().items()
    ]
    project = [{"Changelog": "changelog.md"}, {"Contribute": "contributing.md"}, {"Security": "security.md"}]
    config.nav = [
        *(config.nav or []),
        {"Results": results},
        {"Reference": [{"Modules": "reference/index.md"}, *reference]},
        {"Project": project},
    ]
    if REPOSITORY:
        config.repo_url, config.repo_name = f"https://github.com/{REPOSITORY}", REPOSITORY
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages and their pictures."""
    for place, source in PAGES.items():
        files.append(File.generated(config, place, content=_read(source)))
    for path in [*_results(), *(ROOT / "experiments").rglob("*.png")]:
        files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    lines = ["# Modules", ""]
    for room, names in _rooms().items():
        lines += [f"## {room}", "", "| module | |", "| --- | --- |"]
        for name in names:
            files.append(File.generated(config, _page(name), content=f"::: {name}\n"))
            lines.append(f"| [{name}]({posixpath.basename(_page(name))}) | {_summary(name)} |")
        lines.append("")
    files.append(File.generated(config, "reference/index.md", content="\n".join(lines)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Puts results in their places and mends links."""
    place = page.file.src_uri
    source = PAGES.get(place, place if place.startswith("experiments/") else f"docs/{place}")
    markdown = RESULTS.sub(lambda found: _shown_results(found[1], found[2], place), markdown)
    parts = FENCE.split(markdown)
    parts[::2] = [LINK.sub(lambda found: _link(found, source, place, files), part) for part in parts[::2]]
    return "".join(parts)


def _link(found: re.Match[str], source: str, place: str, files: Files) -> str:
    """One link of a page that lies at ``source`` in the repository and at ``place`` in the documentation."""
    image, text, target = found.groups()
    if re.match(r"[a-z]+:|#", target):
        return found[0]
    path, _, anchor = target.partition("#")
    wanted = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    there = next((page for page, file in PAGES.items() if file == wanted), wanted.removeprefix("docs/"))
    if files.get_file_from_path(there) is not None:
        relative = posixpath.relpath(there, posixpath.dirname(place) or ".")
        return f"{image}[{text}]({relative}{'#' * bool(anchor)}{anchor})"
    if not (ROOT / wanted).exists():
        raise FileNotFoundError(f"{source}: a link leads to {wanted}, which is not there")
    return f"{image}[{text}](https://github.com/{REPOSITORY}/blob/main/{wanted})" if REPOSITORY else text


def _shown_results(page: str, name: str, place: str) -> str:
    """A page of results of one paper, or where they are."""
    results = ROOT / "experiments" / name / f"{page}.md"
    if not results.is_file():
        return "The numbers, the paper's beside ours, are in the [results](../../experiments/README.md)."
    there = posixpath.relpath(f"experiments/{name}", posixpath.dirname(f"docs/{place}"))

    def moved(found: re.Match[str]) -> str:
        image, text, target = found.groups()
        return found[0] if re.match(r"[a-z]+:|#", target) else f"{image}[{text}]({there}/{target})"

    parts = FENCE.split(results.read_text(encoding="utf-8"))
    parts[::2] = [re.sub(r"^(#+ )", r"#\1", LINK.sub(moved, part), flags=re.MULTILINE) for part in parts[::2]]
    return "".join(parts)


def _results() -> list[Path]:
    found = (path for path in (ROOT / "experiments").glob("**/*.md") if not path.name.startswith("template"))
    return sorted(found, key=lambda path: (len(path.parts), path))


def _rooms() -> dict[str, list[str]]:
    """The public modules of every room, by their names."""
    rooms: dict[str, list[str]] = {}
    for path in sorted((ROOT / "dpaudit").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        own = parts[:-1] if parts[-1] == "__init__" else parts
        hidden = any(part.startswith("_") for part in own) or parts[-1].endswith("_pb2")
        if not hidden and _summary(".".join(own)):
            rooms.setdefault(".".join(own[:2]) if len(parts) > 2 else "dpaudit", []).append(".".join(own))
    return rooms


def _summary(name: str) -> str:
    """The first line of a module's docstring; empty where there is none."""
    path = ROOT.joinpath(*name.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split()).replace("|", "\\|").replace("``", "`")


def _page(name: str) -> str:
    return f"reference/{name}.md"


def _read(source: str) -> str:
    return (ROOT / source).read_text(encoding="utf-8")
