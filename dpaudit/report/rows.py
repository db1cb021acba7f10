"""Reads and writes result rows as strict JSON, replaces files atomically, and refuses to overwrite by accident."""

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpaudit import _validate
from dpaudit._engine.replacing import replacing
from dpaudit.auditing.result import json_number


def write_rows(rows: Sequence[dict[str, Any]], path: str | os.PathLike[str]) -> None:
    """Writes rows as a JSON list, one field a line, as a list of numbers is too; infinity becomes the text "inf".

    Args:
      rows: dictionaries of JSON values.
      path: the file, replaced atomically.

    Raises:
      InputError: a value that JSON cannot represent, or a file that cannot be written.
    """
    try:
        text = _text(json_number(list(rows)), "\n")
    except (TypeError, ValueError) as error:
        raise _validate.expected("rows", "values that JSON knows", error) from None
    replace_text(path, text + "\n")


def _text(value: Any, line: str) -> str:
    """Returns JSON as ``json.dumps`` indents it by one space, but for lists that hold no list or dictionary.

    Args:
      value: to be written.
      line: the end of a line, with the spaces that the next one begins with.
    """
    if isinstance(value, dict) and value:
        inner = [
            f"{json.dumps(str(name), ensure_ascii=False)}: {_text(item, line + ' ')}" for name, item in value.items()
        ]
        return "{" + ",".join(line + " " + item for item in inner) + line + "}"
    if isinstance(value, (list, tuple)):
        items = [_text(item, line + " ") for item in value]
        if any(isinstance(item, (list, tuple, dict)) for item in value):
            return "[" + ",".join(line + " " + item for item in items) + line + "]"
        return "[" + ", ".join(items) + "]"
    return json.dumps(value, allow_nan=False, ensure_ascii=False, indent=1)  # with indent, a refusal names the value


def read_rows(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Reads what :func:`write_rows` wrote; infinity stays the text "inf".

    Raises:
      InputError: the file is missing, truncated, or not a list of rows.
    """
    name, wanted = Path(path).name, "a JSON list of result rows"
    try:
        rows = json.loads(Path(path).read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except OSError as error:
        raise _validate.expected(name, wanted, error.strerror) from None
    except ValueError as error:  # truncated JSON, or bytes that are not UTF-8
        raise _validate.expected(name, wanted, f"other text ({error})") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise _validate.expected(name, wanted, f"a JSON {type(rows).__name__} of something else")
    return rows


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def replace_text(path: str | os.PathLike[str], text: str) -> None:
    """Replaces a file atomically: the text is written beside it and renamed, so that no kill leaves a partial file.

    Raises:
      InputError: the file cannot be written.
    """
    path = Path(path)
    try:
        with replacing(path) as stream:
            stream.write(text.encode(errors="backslashreplace"))  # of the bytes of a file name that are no text
    except OSError as error:
        raise _validate.expected(path.name, "a file that can be written", error.strerror) from None


def prepare_out(directory: str | os.PathLike[str], force: bool) -> Path:
    """Makes the directory for results, or refuses an unusable one before any work is done.

    Args:
      directory: where results go.
      force: accept a directory that is not empty; files of the same names will be replaced.

    Raises:
      InputError: a file, a directory that cannot be written, or, without ``force``, one that is not empty.
    """
    path = Path(directory)
    if path.exists() and not path.is_dir():
        raise _validate.expected("--out", "a directory", f"the file {path}")
    try:
        path.mkdir(parents=True, exist_ok=True)
        occupied = any(path.iterdir())
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise _validate.expected("--out", "a directory that can be written", f"{error.strerror}: {path}") from None
    if occupied and not force:
        raise _validate.expected(
            "--out", "a new or empty directory, or --force to replace the results in it", str(path)
        )
    return path
