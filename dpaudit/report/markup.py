"""Makes the pieces of HTML that pages consist of, and escapes every text that it is given."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from dpaudit.report.figures import to_svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def paragraph(text: str) -> str:
    """Makes a paragraph of plain text."""
    return f"<p>{escape(text)}</p>"


def bullets(items: Iterable[str]) -> str:
    """Makes a list of plain texts."""
    return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"


def definitions(items: Iterable[tuple[str, str]]) -> str:
    """Makes a list of names with their meanings, plain text."""
    return "<dl>" + "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in items) + "</dl>"


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "", caption: str = "") -> str:
    """Renders a table of plain texts, its rows named by the first column. A dense one becomes a list on a phone."""
    head = "".join(f'<th scope="col">{escape(header)}</th>' for header in headers)
    above = f"<caption>{escape(caption)}</caption>" if caption else ""
    labels = headers if kind == "dense" else ()
    body = f"{above}<thead><tr>{head}</tr></thead><tbody>{_body(rows, labels)}</tbody>"
    return f'<div class="wide"><table class="{kind}">{body}</table></div>'


def _body(rows: Iterable[Sequence[str]], labels: Sequence[str]) -> str:
    named = [f' data-label="{escape(label)}"' for label in labels[1:]]
    return "".join(
        f'<tr><th scope="row">{escape(first)}</th>'
        + "".join(f"<td{name}>{escape(cell)}</td>" for cell, name in zip(rest, named or [""] * len(rest), strict=True))
        + "</tr>"
        for first, *rest in rows
    )


def figure(drawn: "Figure", name: str, caption: str) -> str:
    """Makes a figure with its caption, on white in light and dark mode alike."""
    svg = to_svg(drawn, name, caption)
    return f'<figure><div class="wide paper">{svg}</div><figcaption>{escape(caption)}</figcaption></figure>'
