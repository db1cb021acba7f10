"""The few pieces of HTML that the page is made of; every text from outside is escaped here."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from dpaudit.report.figures import to_svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def paragraph(text: str) -> str:
    """A paragraph of plain text."""
    return f"<p>{escape(text)}</p>"


def bullets(items: Iterable[str]) -> str:
    """A list; the items are plain text."""
    return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"


def definitions(items: Iterable[tuple[str, str]]) -> str:
    """Names with what they mean, plain text."""
    return "<dl>" + "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in items) + "</dl>"


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """A table of plain texts that scrolls sideways where the screen is narrow; the first cell names its row."""
    head = "".join(f'<th scope="col">{escape(header)}</th>' for header in headers)
    body = f"<thead><tr>{head}</tr></thead><tbody>{_body(rows)}</tbody>"
    return f'<div class="wide"><table class="{kind}">{body}</table></div>'


def _body(rows: Iterable[Sequence[str]]) -> str:
    return "".join(
        f'<tr><th scope="row">{escape(first)}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in rest) + "</tr>"
        for first, *rest in rows
    )


def figure(drawn: "Figure", name: str, caption: str) -> str:
    """A drawing with its caption, on white whatever the reader's colours are."""
    svg = to_svg(drawn, name, caption)
    return f'<figure><div class="wide paper">{svg}</div><figcaption>{escape(caption)}</figcaption></figure>'
