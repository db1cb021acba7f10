"""Types of one run, and of what a run on x0 and its replay on x1 showed."""

from typing import NamedTuple

from dpaudit.auditing.lint.inspect import Finding
from dpaudit.audits.recording.losses import Loss
from dpaudit.audits.recording.outputs import Output
from dpaudit.audits.recording.trace import Block, Trace


class Run(NamedTuple):
    """One run: its record and what it returned."""

    trace: Trace
    output: Output


class Shown(NamedTuple):
    """The values with noise in them that the output of a run shows, as numbers of their nodes.

    Attributes:
      found: those that are there unchanged, however large the noise, so that they are neither clipped nor rounded.
      fixed: those that are at the same place of the output whatever the noise, and for x1 too, so that their joint
        distribution can be read from the output.
    """

    found: set[int]
    fixed: set[int]


class Noise(NamedTuple):
    """One call of a source whose noise was added to data.

    Attributes:
      source, law, where: of the call.
      size: how many numbers it drew.
      scale: of the noise as it was released, the largest.
      difference: |value0 - value1| of what it was added to, in the norm of the noise.
      norm: 1 or 2.
      epsilon: of this noise alone at the claim's delta, None if it is not known.
      seen: whether the function returned all of it.
    """

    source: str
    law: str
    where: str
    size: int
    scale: float
    difference: float
    norm: float
    epsilon: float | None
    seen: bool


class Comparison(NamedTuple):
    """What one pair of runs showed.

    Attributes:
      noises: every noise that was added to data.
      whole: the loss of all releases together; an upper bound, because not all releases are returned.
      returned: the loss of the releases that were found in the output.
      faults: the faults found, each with whether it proves that outputs of the two inputs can be told apart with
        certainty.
      left: the reasons why replaying is not conclusive.
      coins: whether randomness was used other than by adding it to a value.
      hiding: the ids of the draws that hide a difference, or are part of noise that does.
    """

    noises: tuple[Noise, ...]
    whole: Loss
    returned: Loss
    faults: tuple[tuple[Finding, bool], ...]
    left: tuple[str, ...]
    coins: bool
    hiding: frozenset[int]


class Element(NamedTuple):
    """One number of one release: its noise, the difference in units of its scale, the shift of the noise that makes up
    for it, whether it was returned, and whether it was only seen before the end, so that other noise may have been
    added."""

    id: int
    block: Block
    ratio: float
    shift: float
    difference: float
    scale: float
    seen: bool
    where: str
    passing: bool = False
