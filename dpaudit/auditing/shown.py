"""Formats an epsilon that is shown beside a promise."""

import math


def beside(value: float, promised: float | None, form: str = ".3g") -> str:
    """Formats a number, with more digits where rounding would move it across the promise: ``1.003`` where 1 was
    promised.

    An audit that stops as soon as a violation is certain has a bound that is just above the promise.

    Args:
      value: to be formatted.
      promised: the epsilon that it is read beside, or None.
      form: of as many digits as usual, such as ``.2f``.
    """
    digits, kind = int(form[1:-1]), form[-1]
    text = format(value, form)
    while promised is not None and math.isfinite(value) and (float(text) > promised) != (value > promised):
        digits += 1
        text = format(value, f".{digits}{kind}")
    return text
