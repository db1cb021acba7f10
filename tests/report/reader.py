"""Reads a page as a browser would, and refuses one that is broken or reaches outside."""

from html.parser import HTMLParser
from pathlib import Path

VOID = {"meta", "br", "hr", "img", "link", "input"}


class Reader(HTMLParser):
    """Checks that every element is closed in order, and keeps the text and the tags."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            assert not name.startswith("on")
            if name in ("src", "href", "xlink:href"):
                assert value is not None
                assert value.startswith("#")

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        if self.open[-1:] != ["style"]:
            self.text += data


def read_page(file: Path) -> tuple[str, str, set[str]]:
    """(source, text with single spaces, tags) of a page that is whole."""
    source = file.read_text(encoding="utf-8")
    reader = Reader()
    reader.feed(source)
    reader.close()
    assert reader.open == []
    return source, " ".join(reader.text.split()), reader.tags
