"""The files of the page: the library as it was published, one file that holds all, and a policy that admits no more."""

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import orjson
import pytest

from webhook.devicemap import server
from webhook.devicemap.server import SCRIPTS, files, single

VENDOR = Path(server.__file__).parent / "static" / "vendor"
OWN = [name for name in SCRIPTS if not name.startswith("vendor/")]
HOSTILE = "</script><script>alert(1)</script><!--<script>'\"&\u2028"
# The files of the npm packages preact 10.29.8 (dist/preact.umd.js, hooks/dist/hooks.umd.js) and htm 3.1.1
# (dist/htm.umd.js), with their licences.
PUBLISHED = {
    "preact-10.29.8.js": "134b77bc803fa38661dc1b1e44e96eb0bb6a1a00edbb96d34dcde421b2e80b06",
    "preact-hooks-10.29.8.js": "5c29238e5dc99df306d7f7fff038591a397cfcfabb59f81fbdef43d670aa0566",
    "htm-3.1.1.js": "7a31776e04bd4afde0d4308177d26f377716fcf7e4bd70be590746d6aa594f08",
    "LICENSE.preact": "1fe6958409c8c257a70c587a18b6f7f412b179b456630790d30b2ec9a8e4b7d4",
    "LICENSE.htm": "740725f7252e750af735d0028cc534970772f513331e9f68150fede8fb3ce00f",
}


class Page(HTMLParser):
    """The scripts and styles of a page as a browser reads them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None], str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        self.found.append((f"/{tag}", {}, ""))

    def handle_data(self, data: str) -> None:
        if self.found:
            tag, attributes, text = self.found[-1]
            self.found[-1] = tag, attributes, text + data

    def texts(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        return [(attributes, text) for name, attributes, text in self.found if name == tag]


def test_the_library_is_what_was_published() -> None:
    assert {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in VENDOR.iterdir()} == PUBLISHED


def test_the_page_names_the_scripts_in_their_order_and_has_nothing_inline() -> None:
    page = Page(files()[""].body.decode())
    scripts = page.texts("script")
    assert [attributes["src"] for attributes, _ in scripts if "src" in attributes] == list(SCRIPTS)
    (data,) = (attributes for attributes, _ in scripts if "src" not in attributes)
    assert data == {"type": "application/json", "id": "data"}
    assert not any(name.startswith("on") for _, attributes, _ in page.found for name in attributes)
    assert not page.texts("style")


@pytest.mark.parametrize("name", OWN)
def test_text_of_the_cluster_is_never_read_as_markup(name: str) -> None:
    text = files()[name].body.decode()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", text)


def test_one_file_has_all_and_comes_with_its_data() -> None:
    document = {"nodes": [{"name": HOSTILE}]}
    page = Page(single(document))
    scripts = page.texts("script")
    (data,) = (text for attributes, text in scripts if attributes.get("id") == "data")
    assert orjson.loads(data) == document
    assert len(scripts) == 1 + len(SCRIPTS)
    assert not any({"src", "href"} & attributes.keys() for tag, attributes, _ in page.found if tag != "link")
    assert [attributes["href"] for attributes, _ in page.texts("link")] == ["data:,"]


def test_the_policy_of_one_file_admits_its_own_scripts_and_style_alone() -> None:
    page = Page(single({"nodes": []}))
    (policy,) = (one["content"] or "" for one, _ in page.texts("meta") if "http-equiv" in one)
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    code = [text for attributes, text in page.texts("script") if "id" not in attributes]
    for text in (*code, *(text for _, text in page.texts("style"))):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert policy.count("sha256-") == len(SCRIPTS) + 1
