"""Hooks of MkDocs: they add the pages from outside docs/, and write links and lists as the site needs them."""

import re
from typing import Any, Final

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from sitepages import ELSEWHERE, ROOT, asset, attached, extended, relinked, source, widened

_LOADS: Final = re.compile(
    r'<(?:script|img|iframe|source)[^>]* src="(?:https?:)?(//[^"]*)"'
    r'|<link[^>]*rel="?(?:stylesheet|preconnect|icon)[^>]* href="?((?:https?:)?//[^" >]*)'
)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages from elsewhere, and the files that pages link."""
    for path, page in ELSEWHERE.items():
        files.append(File.generated(config, page, content=extended(path)))
    sources = [source(file.src_uri) for file in files.documentation_pages()]
    for path in sorted({path for one in sources for path in attached(one, extended(one))}):
        files.append(File.generated(config, asset(path), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Write links as they are between the pages of the site, and indent what is in lists by four."""
    return widened(relinked(markdown, source(page.file.src_uri)))


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Refuse a page that would make a reader's browser ask another machine for something."""
    if loaded := ["".join(found) for found in _LOADS.findall(output)]:
        raise PluginError(f"{page.file.src_uri} loads {', '.join(loaded)} from elsewhere; bring it along")
    return output
