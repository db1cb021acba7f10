"""Writes self-contained HTML pages about a client's audit (first what the client wants to know, then what an engineer
wants to check), about one audit or examination of a mechanism, about one audited training, and about one training
through two servers."""

import os
from collections.abc import Sequence
from html import escape
from typing import Any

from dpaudit import _validate
from dpaudit.report import page_audit, page_client, page_engineer, page_secure, words
from dpaudit.report.randomizer_words import kind_of
from dpaudit.report.rows import replace_text

STYLE = """
:root { color-scheme: light dark; --ink: #222; --faint: #666; --ground: #fff; --box: #eef4f9; --rule: #d5d5d5; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e6; --faint: #a8a8a8; --ground: #17191c; --box: #22303c; --rule: #444; }
}
body { margin: 0 auto; max-width: 46rem; padding: 1rem 1rem 4rem; background: var(--ground); color: var(--ink);
  overflow-wrap: break-word; font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 1.5rem 0 .8rem; }
h2 { font-size: 1.25rem; margin: 2.2rem 0 .6rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .2rem; }
h3 + p { margin-top: 0; }
hr { border: 0; border-top: 2px solid var(--rule); margin: 4rem 0 0; }
.box { background: var(--box); border-radius: .5rem; padding: .6rem 1rem; margin: 1rem 0; }
.box p { margin: .3rem 0; }
.wide { overflow-x: auto; }
.paper { background: #fff; border-radius: .3rem; }
.paper svg { display: block; max-width: 100%; min-width: 23rem; height: auto; margin: 0 auto; }
figure { margin: 1.2rem 0; }
figcaption { color: var(--faint); font-size: .875rem; margin-top: .3rem; }
table { border-collapse: collapse; margin: .8rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem .25rem 0; text-align: right; font-weight: normal; }
thead th { vertical-align: bottom; border-bottom: 1px solid var(--ink); color: var(--faint); font-size: .875rem; }
th:first-child { text-align: left; }
td { white-space: nowrap; vertical-align: top; }
tbody tr { border-bottom: 1px solid var(--rule); }
table.dense, table.dense th { font-size: .75rem; }
table.dense th, table.dense td { white-space: nowrap; padding-right: .5rem; }
.wide:has(table.dense) { width: min(100vw - 2rem, 64rem); margin-left: 50%; transform: translateX(-50%); }
.randomizer { display: grid; grid-template-columns: minmax(12rem, 20rem) 1fr; gap: 0 1.5rem; align-items: center; }
.randomizer p { grid-column: 1 / -1; }
.randomizer label { display: block; margin: .6rem 0; }
.randomizer label[hidden] { display: none; }
.randomizer input { display: block; width: 100%; }
.randomizer text { fill: var(--ink); font-size: 13px; text-anchor: middle; dominant-baseline: middle; }
.randomizer .side { fill: var(--faint); font-size: 11px; }
.rim { fill: none; stroke: var(--faint); }
.near { fill: #009e73; }
.arrow { stroke: var(--ink); stroke-width: 3; stroke-linecap: round; }
.equal { stroke: var(--faint); stroke-dasharray: 4 4; }
caption { caption-side: top; text-align: left; color: var(--faint); font-size: .875rem; }
small { color: var(--faint); font-weight: normal; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; }
dt { color: var(--faint); }
dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 30rem) {
  dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .5rem; }
  table { font-size: .8125rem; } th, td { padding-right: .35rem; } thead th { font-size: .75rem; }
  .paper svg { min-width: 0; }
  .randomizer { grid-template-columns: 1fr; }
}
@media (max-width: 52rem) {
  .wide:has(table.dense) { width: auto; margin-left: 0; transform: none; }
  table.dense, table.dense tbody { display: block; } table.dense thead { display: none; }
  table.dense tr { display: grid; grid-template-columns: 1fr 1fr; column-gap: 1rem; padding: .4rem 0; }
  table.dense tr th { grid-column: 1 / -1; font-weight: bold; font-size: .8125rem; }
  table.dense td { display: flex; justify-content: space-between; padding: 0; white-space: normal; }
  table.dense td::before { content: attr(data-label); color: var(--faint); padding-right: .5rem; }
}
@media print {
  h1, h2, h3, caption { break-after: avoid; } figure, .box, .randomizer, tr { break-inside: avoid; }
  .moving, .randomizer input { display: none; }
}
"""

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
{head}<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


def write_page(rows: Sequence[dict[str, Any]], path: str | os.PathLike[str], planned: int | None = None) -> None:
    """Writes the report of a client's audit, which loads nothing from elsewhere and is readable on a phone.

    Its only script moves the picture of the randomizer, and the page's content policy blocks every other script.

    Args:
      rows: of :func:`dpaudit.audits.ldp_client.audit_craft`, with ``dataset``, ``craft``, ``seed`` and
        ``versions``.
      path: the file, replaced atomically.
      planned: how many rows the whole run makes; the page of fewer says that it was interrupted.

    Raises:
      InputError: no rows, rows of several randomizers, or a file that cannot be written.
    """
    if not rows:
        raise _validate.expected("rows", "at least one result row", "none")
    rows = words.ordered(rows)
    body = page_client.render(rows, planned) + "\n<hr>\n" + page_engineer.render(rows)
    _write(path, "How private is your update?", body, head=kind_of(rows).head)


def write_audit_page(row: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Writes the report of one audit of a user's mechanism.

    Args:
      row: :meth:`dpaudit.AuditResult.to_row` with ``target``, ``seed``, ``seconds`` and ``versions``.
      path: the file, replaced atomically.

    Raises:
      InputError: a file that cannot be written.
    """
    _write(path, f"Audit of {row['target']}", page_audit.render(row))


def write_examination_page(row: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Writes the report of one examination.

    Args:
      row: of ``dpaudit examine``.
      path: the file, replaced atomically.

    Raises:
      InputError: a file that cannot be written.
    """
    _write(path, f"Examination of {row['target']}", page_audit.render_examination(row))


def write_training_page(row: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Writes the report of one audited training.

    Args:
      row: of :func:`dpaudit.audits.audited_training.train_audited`, with ``optimizer``, ``learning_rate``, ``seed``,
        ``seconds``, ``versions`` and ``device``.
      path: the file, replaced atomically.

    Raises:
      InputError: a file that cannot be written.
    """
    _write(path, f"Private training on {row['dataset']}", page_audit.render_training(row))


def write_secure_page(row: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Writes the report of one training through two servers.

    Args:
      row: of ``dpaudit secure train``.
      path: the file, replaced atomically.

    Raises:
      InputError: a file that cannot be written.
    """
    _write(path, "Training through two servers", page_secure.render(row))


def _write(path: str | os.PathLike[str], title: str, body: str, head: str = "") -> None:
    replace_text(path, PAGE.format(style=STYLE, title=escape(title), body=body, head=head))
