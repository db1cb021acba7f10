"""Text that others wrote, within one line of a log or an error of ours."""

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
