"""Keeps freed memory in the process, for programs that allocate the same large arrays in every step.

The GNU C library returns large blocks to the system when they are freed, and the system clears each page before it
hands it out again. In a step of two servers that was a seventh of their processor time.
"""

import ctypes

# Parameters of mallopt(3), from the GNU C library's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST = 32 << 20  # bytes of a block that comes from the heap; the library allows no more
_KEPT = 256 << 20  # free bytes at the end of the heap, of which more are returned


def keep() -> bool:
    """Has freed memory used again in this process; returns False, and changes nothing, without the GNU C library."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(
        mallopt(parameter, size) == 1 for parameter, size in ((_MMAP_THRESHOLD, _LARGEST), (_TRIM_THRESHOLD, _KEPT))
    )
