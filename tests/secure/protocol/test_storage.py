"""Tests that what a log says is on disk when it is said, as far as a program that goes on running can see."""

import subprocess
import sys
from pathlib import Path

SEEN = """
import sys
from pathlib import Path
from dpaudit.secure.protocol import storage

log, opened = Path(sys.argv[1]) / "log", []
sys.addaudithook(lambda event, of: opened.append(str(of[0])) if event == "open" else None)
for line in (b"1\\n", b"2\\n"):
    storage.add(log, line)
    opened.append(line.decode().strip())
names = {str(log): "log", str(log.parent): "folder", "1": "first", "2": "second"}
print(*[names[each] for each in opened if each in names])
assert log.read_bytes() == b"1\\n2\\n"
"""


def test_the_folder_of_a_new_log_is_synchronised_before_its_first_line_counts(tmp_path: Path) -> None:
    """Without it the file itself, and with it the openings begun, may be lost with the power."""
    command = [sys.executable, "-c", SEEN, str(tmp_path)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert told == ["log", "folder", "first", "log", "second"]
