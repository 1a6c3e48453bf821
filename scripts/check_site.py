"""Checks that all links inside a built site lead somewhere: to a file that exists and, with a fragment, to an id in it.

    python scripts/check_site.py FOLDER

Sphinx checks the links that it makes itself. This also sees those of the theme, of raw HTML and of drawings.
"""

from __future__ import annotations

import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The ids of a page, and what it links to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.targets: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.ids.add(value)
            elif name in ("href", "src") and value:
                self.targets.add(value)


@cache
def page_at(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


def broken_links(folder: Path) -> list[str]:
    """A line for each link that leads nowhere. Links to other sites are not followed."""
    broken = []
    for path in sorted(folder.rglob("*.html")):
        for target in sorted(page_at(path).targets):
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            found = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            fragment = unquote(parts.fragment)
            if not found.is_file():
                broken.append(f"{path.relative_to(folder)}: {target}: there is no such file")
            elif fragment and found.suffix == ".html" and fragment not in page_at(found).ids:
                broken.append(f"{path.relative_to(folder)}: {target}: the page has no such id")
    return broken


if __name__ == "__main__":
    lines = broken_links(Path(sys.argv[1]).resolve())
    print(*lines, sep="\n", end="\n" if lines else "", file=sys.stderr)
    sys.exit(bool(lines))
