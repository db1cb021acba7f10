"""Clipped gradients as whole numbers whose L2 norm is still bounded.

Rounding each coordinate to the nearest unit can lengthen a vector by up to sqrt(d)/2 units, and with it the
sensitivity that the noise is made for. Rounding toward zero never lengthens it, and whole numbers add exactly: the sum
that the servers reconstruct is that of the examples' integers, to the bit, however it was split.
"""

import numpy as np

from dpaudit import check
from dpaudit.secure.scale import Scale

SLACK = 1e-4  # by which a float32 computation may miss the clip norm, relative; a longer row was not clipped


def quantize(gradients: np.ndarray, scale: Scale) -> np.ndarray:
    """Each example's clipped gradient in units of C/Q, toward zero: integers of L2 norm at most Q.

    Rows longer than C by no more than rounding are first shortened to C, in float64. The work takes some 20 bytes a
    coordinate and example: pass large batches in parts.

    Args:
      gradients: [n, d], one clipped gradient per example.
      scale: C, and the Q units that it is.

    Returns:
      int32 [n, d]. Sum them over examples in int64, which ``.sum(axis=0)`` does.

    Raises:
      InputError: a row that is not clipped, or not finite.
    """
    rows = np.asarray(gradients, np.float64)
    if rows.ndim != 2:
        raise check.expected("gradients", "an array of shape [n, d]", f"shape {list(rows.shape)}")
    norms = np.sqrt(np.einsum("nd,nd->n", rows, rows))
    if not (norms <= scale.clip_norm * (1 + SLACK)).all():
        raise check.expected("gradients", f"rows of L2 norm <= {scale.clip_norm:g}", float(norms.max()))
    integers = np.trunc(rows * (scale.levels / np.maximum(norms, scale.clip_norm))[:, None]).astype(np.int32)
    squares = np.einsum("nd,nd->n", integers, integers, dtype=np.int64)
    if (squares > scale.levels**2).any():
        raise check.expected("scale", "levels for which float64 is exact enough", scale.levels)
    return integers


def dequantize(total: np.ndarray, scale: Scale) -> np.ndarray:
    """Whole units back into gradients: float64, of any shape."""
    return total * scale.unit
