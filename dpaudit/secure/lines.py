"""Text that others wrote, within one line of a log or an error of ours."""

import datetime
import json
import re

LONGEST = 80  # characters of a name
MOST = 10  # names in one line


def printable(text: str) -> str:
    """The text with every character that is not printable, an end of line too, as Python escapes it."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text)


def short(text: str) -> str:
    """The text's beginning, printable."""
    text = printable(text[: LONGEST + 1])
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def listed(names: list[str] | tuple[str, ...]) -> str:
    """The first names, and how many others there are."""
    more = f" and {len(names) - MOST} others" if len(names) > MOST else ""
    return ", ".join(names[:MOST]) + more


def as_json(server: str, line: str) -> str:
    """A line of a server's log as a JSON object; its step is the one with which the line begins, if it does."""
    step = re.match(r"step (\d+): ", line)
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    told = {"time": now, "server": server, "step": int(step[1]) if step else None}
    return json.dumps(told | {"told": line[step.end() :] if step else line})
