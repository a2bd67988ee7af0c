"""What the site changes of the documents: pages from elsewhere, links, lists. Files are read, none is written."""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
# Pages of the site that are written elsewhere in the tree, where others than the site's readers look for them.
ELSEWHERE: Final = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "develop/contributing.md",
    "SECURITY.md": "develop/security.md",
    "charts/koordgate/README.md": "reference/chart.md",
    "examples/recipes/README.md": "use/recipes.md",
}
RECIPES: Final = "examples/recipes"
_LINK: Final = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_ITEM: Final = re.compile(r"( *)(?:[-*]|\d+\.) ")
_FENCE: Final = re.compile(r" *```")


def relinked(markdown: str, source: str) -> str:
    """Write the links of a page, which lead from file to file of the tree, as links of the site."""
    folder = posixpath.dirname(_place(source)) or "."

    def link(match: re.Match[str]) -> str:
        image, text, target = match.groups()
        path, mark, anchor = target.partition("#")
        if not path or "://" in target:
            return match[0]
        within = _within(source, path)
        if (ROOT / within).is_dir():
            return text
        return f"{image}[{text}]({posixpath.relpath(_place(within), folder)}{mark}{anchor})"

    return "".join(line if fenced else _LINK.sub(link, line) for line, fenced in _lines(_whole(markdown)))


def widened(markdown: str) -> str:
    """Indent what is within the items of lists by four for each level: Python-Markdown wants that, GitHub does not."""
    written: list[str] = []
    columns: list[int] = []  # for each level, where the text of its items begins
    for line, fenced in _lines(markdown):
        indent = len(line) - len(line.lstrip(" "))
        item = None if fenced else _ITEM.match(line)
        if line.strip() and (not fenced or _FENCE.match(line)):
            while columns and indent < columns[-1]:
                columns.pop()
        depth, base = 4 * len(columns), columns[-1] if columns else 0
        written.append(" " * (depth + max(0, indent - base)) + line.lstrip(" ") if line.strip() else line)
        if item is not None:
            columns.append(item.end())
    return "".join(written)


def _lines(markdown: str) -> Iterator[tuple[str, bool]]:
    """The lines, and whether each is in a fenced block or delimits one."""
    inside = False
    for line in markdown.splitlines(keepends=True):
        fence = bool(_FENCE.match(line))
        yield line, inside or fence
        inside ^= fence


def _whole(markdown: str) -> str:
    """Join links whose text is wrapped over two lines, outside fenced blocks."""
    return re.sub(r"\[([^\[\]`]*)\n([^\[\]`]*)\]\(", lambda found: f"[{found[1]} {found[2].lstrip()}](", markdown)


def extended(path: str) -> str:
    """The text of a page, by its path in the tree; the list of recipes is followed by their files."""
    text = (ROOT / path).read_text(encoding="utf-8")
    return text + _recipes() if path == f"{RECIPES}/README.md" else text


def _recipes() -> str:
    """The files of the recipes, below their list."""
    parts = ["\n"]
    for folder in sorted(path.parent for path in (ROOT / RECIPES).glob("*/app.yaml")):
        parts.append(f"\n## {folder.name}\n")
        files = sorted(folder.glob("*.yaml"))
        parts += [f"\n`{file.relative_to(ROOT)}`\n\n```yaml\n{file.read_text(encoding='utf-8')}```\n" for file in files]
    return "".join(parts)


def source(page: str) -> str:
    """The path in the tree of a page of the site."""
    return next((source for source, made in ELSEWHERE.items() if made == page), f"docs/{page}")


def _within(source: str, path: str) -> str:
    """Where a link of a file leads to in the tree."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), path))


def _place(path: str) -> str:
    """Where a file of the tree is in the site."""
    if path in ELSEWHERE:
        return ELSEWHERE[path]
    return path.removeprefix("docs/") if path.startswith("docs/") and not path.endswith(".py") else asset(path)


def asset(path: str) -> str:
    """Where a file that is no page is in the site."""
    return f"files/{path}"


def attached(source: str, text: str) -> Iterator[str]:
    """The files of the tree that a page links and that are no pages."""
    for line, fenced in _lines(_whole(text)):
        for _, _, target in () if fenced else _LINK.findall(line):
            within = _within(source, target.partition("#")[0]) if "://" not in target and target[0] != "#" else ""
            if within and _place(within).startswith("files/") and (ROOT / within).is_file():
                yield within
