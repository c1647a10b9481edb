"""Check a built site: every link leads somewhere, and no page asks another host for anything.

python tools/site.py build/site
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {
    "script": "src",
    "img": "src",
    "link": "href",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "object": "data",
}
IN_STYLES = re.compile(r"(?:url\(|@import)\s*['\"]?(https?:)?//")


@dataclass
class Page(HTMLParser):
    """What a page links to, what it loads, and the places in it that a link can name."""

    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value}
        if "id" in values:
            self.names.add(values["id"])
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag == "a" and "name" in values:
            self.names.add(values["name"])
        if tag in LOADED and LOADED[tag] in values:
            self.loads.append(values[LOADED[tag]])
        if "srcset" in values:
            for candidate in values["srcset"].split(","):
                self.loads.append(candidate.split()[0])


def read(path: Path) -> Page:
    page = Page()
    page.feed(path.read_text())
    return page


def complaints(site: Path) -> Iterator[str]:
    """One sentence per link that leads nowhere and per request to another host."""
    pages = {path.resolve(): read(path) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        shown = path.relative_to(site.resolve())
        for address in page.loads:
            if is_outside(address):
                yield f"{shown} loads {address}"
        for address in [*page.links, *page.loads]:
            if not leads_somewhere(address, path, pages):
                yield f"{shown}: {address} leads nowhere"
    for path in sorted(site.rglob("*.css")):
        if IN_STYLES.search(path.read_text()):
            yield f"{path.relative_to(site)} loads something from another host"


def is_outside(address: str) -> bool:
    return bool(urlsplit(address).netloc)


def leads_somewhere(address: str, path: Path, pages: dict[Path, Page]) -> bool:
    parts = urlsplit(address)
    if parts.scheme or parts.netloc:
        return True  # another host, or data: and mailto:
    target = path
    if parts.path:
        target = (path.parent / unquote(parts.path)).resolve()
    if not target.is_file():
        return False
    if not parts.fragment or target not in pages:
        return True
    return unquote(parts.fragment) in pages[target].names


def main() -> None:
    site = Path(sys.argv[1])
    wrong = list(complaints(site))
    for complaint in wrong:
        print(complaint, file=sys.stderr)
    if wrong:
        sys.exit(f"{len(wrong)} complaints about {site}")
    print(f"{site}/index.html")


if __name__ == "__main__":
    main()
