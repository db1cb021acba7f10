"""Runs a library's first audit as docs/howto/libraries.md prints it, inside the library's environment.

python -m experiments.libraries.first opendp     # prints its number of lines and its verdict, as JSON
"""

import json
import re
import sys
from pathlib import Path

from experiments.libraries import environments

PAGE = Path(__file__).parents[2] / "docs/howto/libraries.md"


def blocks() -> dict[str, str]:
    """The program of each environment."""
    text = PAGE.read_text(encoding="utf-8")
    return dict(re.findall(r"^```python title=\"(\w+)\"\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))


def main() -> None:
    name, names = sys.argv[1], {}
    environments.check(name)
    program = blocks()[name]
    exec(compile(program, f"{PAGE.name}, {name}", "exec"), names)
    print(json.dumps({"lines": len(program.splitlines()), "verdict": names["result"].verdict}))


if __name__ == "__main__":
    main()
