from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from cg_rag.core.memory import give_back, resident_bytes, share_arenas

ROOT = Path(__file__).resolve().parent.parent.parent

FRAGMENTED = """
import sys
sys.path.insert(0, sys.argv[1])
from cg_rag.core.memory import give_back, resident_bytes
kept, freed = [], []
for _ in range(4000):
    freed.append(bytes(30_000))
    kept.append(bytes(600))
held = resident_bytes()
del freed
between = resident_bytes()
give_back()
print(held, between, resident_bytes())
"""


def test_resident_bytes_are_those_of_the_kernel() -> None:
    status = Path("/proc/self/status").read_text()
    kilobytes = int(status.split("VmRSS:")[1].split()[0])
    assert abs(resident_bytes() - kilobytes * 1024) < 4 * 1024 * 1024


def test_freed_memory_between_what_is_still_used_goes_back_to_the_kernel() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FRAGMENTED, str(ROOT)], capture_output=True, text=True, check=True
    )
    held, _between, after = map(int, done.stdout.split())
    assert held - after > 80_000_000


def test_both_may_be_called_at_any_time() -> None:
    share_arenas()
    give_back()


SETTLED = """
import gc, sys, weakref
sys.path.insert(0, sys.argv[1])
from cg_rag.core.memory import give_back, loading
class Ring:
    pass
try:
    with loading():
        assert not gc.isenabled()
        raise ImportError
except ImportError:
    assert gc.isenabled()
ring = Ring()
ring.itself = ring
gone = weakref.ref(ring)
del ring
give_back()
print(gc.get_freeze_count(), gone() is None)
"""


def test_what_is_loaded_at_start_is_passed_over_and_what_came_after_is_collected() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SETTLED, str(ROOT)], capture_output=True, text=True, check=True
    )
    frozen, is_gone = done.stdout.split()
    assert int(frozen) > 1000
    assert is_gone == "True"
