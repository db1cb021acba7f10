import subprocess
import sys

import pytest

from dpaudit.cli import freed_memory

PROGRAM = """
import resource, sys
import numpy as np
from dpaudit.cli import freed_memory
if sys.argv[1] == "keep":
    assert freed_memory.keep()
def page_faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def step():
    arrays = [np.ones(2 << 20, np.uint8) for _ in range(8)]
    del arrays
step()
before = page_faults()
for _ in range(10):
    step()
print(page_faults() - before)
"""


@pytest.mark.skipif(not hasattr(freed_memory.ctypes.CDLL(None), "mallopt"), reason="another C library than GNU's")
def test_large_arrays_use_the_same_pages_in_every_step() -> None:
    def faults(how: str) -> int:
        said = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True)
        return int(said.stdout)

    assert faults("keep") < 500
    assert faults("as it comes") > 5_000


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freed_memory.ctypes, "CDLL", lambda name: object())
    assert not freed_memory.keep()
