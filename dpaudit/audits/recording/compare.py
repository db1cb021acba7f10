"""Compares a run on x0 with its replay on x1: the differences that each noise hides, those that none hides, and noise
that is used for more than one value."""

import math
from typing import Any

import numpy as np

from dpaudit.auditing.lint.inspect import Finding
from dpaudit.audits.recording import affine, losses
from dpaudit.audits.recording.losses import Loss
from dpaudit.audits.recording.outputs import same, texts
from dpaudit.audits.recording.pair import Comparison, Element, Noise, Run, Shown
from dpaudit.audits.recording.trace import CONTINUOUS, Block, twins
from dpaudit.mechanisms.claim import Claim

ROUNDING = 1e-9  # relative to the scale of the noise, or to the value if that is much larger
NORM = {"gaussian": 2.0}  # of the difference; otherwise 1
WITH_COINS = {"noise_reuse", "constant_seed"}
APART = {"uniform", "exponential"}  # laws with values that cannot occur in the other world


def compare(first: Run, second: Run, constant: set[int], shown: Shown, claim: Claim | None) -> Comparison:
    """Compares a run with its replay.

    Args:
      first: of x0.
      second: of x1, with the noise of the first.
      constant: draws that were the same in an independent run, by number.
      shown: the nodes whose values were found in the output.
      claim: the promise, for its delta.
    """
    return _Comparer(first, second, constant, shown, claim).compared()


class _Comparer:
    def __init__(self, first: Run, second: Run, constant: set[int], shown: Shown, claim: Claim | None) -> None:
        self.first, self.second, self.constant, self.shown, self.claim = first, second, constant, shown, claim
        self.then, self.now = first.trace, second.trace
        self.aligned = min(len(self.then.nodes), self.now.aligned)
        self.faults: dict[tuple[str, str], tuple[Finding, bool]] = {}
        self.left: list[str] = []
        self.pure, self.apart = 0.0, 0.0
        self.bad_scale = self.exchanged = False
        self.elements: list[Element] = []
        self.observed: set[int] = set()
        self.same_noise = twins(self.then)

    def fault(self, kind: str, sentence: str, where: str, proves: bool) -> None:
        known = self.faults.get((kind, where))
        if known is None or (proves and not known[1]):
            self.faults[kind, where] = (Finding(kind, sentence, where), proves)

    def compared(self) -> Comparison:
        returned = {tag.node for tag in self.first.output.tags.values()}
        coins = self._draws() + self.then.lost
        hidden = self._observed(coins)
        leaves = [k for k in range(self.aligned) if k not in self.then.consumed or k in returned]
        for k in leaves:
            if self.then.nodes[k].kind not in ("compared", "observed"):
                seen = k in self.shown.fixed
                self._release(k, hidden, seen=seen, tagged=seen and k in returned)
        self._entries(hidden)
        self._lent(leaves)
        met = {element.id for element in self.elements if element.ratio}
        for k in leaves:
            node = self.then.nodes[k]
            ids = node.tag.ids[node.tag.ids >= 0]
            silent = k not in returned and k not in self.shown.found and node.kind != "compared"
            if silent and ids.size and not met & set(ids.tolist()):
                coins.append(node.where)
        if self.now.diverged is not None:
            what = self.now.diverged
            kind = "data_dependent_shape" if what.what == "shape" else "control_flow"
            self.fault(kind, f"the draws depend on the data: {what.said}", what.where, False)
            self.left.append("the runs diverge, and the rest is not compared")
        if coins:
            self.left.append(f"randomness is used other than as additive noise at {coins[0]}")
        whole, seen = self._composed()
        # with coins, an output that differs under one outcome may occur under another one
        faults = [(one, proves and (not coins or one.kind in WITH_COINS)) for one, proves in self.faults.values()]
        left, hiding = tuple(dict.fromkeys(self.left)), np.array(sorted(met | set(self.now.entries)), int)
        draws = affine.roots(self.then, hiding[hiding < self.then.size])
        return Comparison(tuple(self._noises()), whole, seen, tuple(faults), left, bool(coins), draws)

    def _draws(self) -> list[str]:
        """Compares the parameters of all draws; returns where draws were made that are not followed and are the
        same."""
        coins, seeds = [], {seed.seed for seed in self.then.seeds}
        for then, now in zip(self.then.draws, self.now.draws, strict=False):
            if (then.law, then.shape) != (now.law, now.shape):
                break
            names = then.parameters.keys() | now.parameters.keys()
            equal = all(
                bool(np.all(same(np.asarray(then.parameters.get(one)), np.asarray(now.parameters.get(one)))))
                for one in names
            )
            if equal:
                if not then.followed and not seeds & texts(then.raw):
                    coins.append(then.where)
                continue
            epsilon = losses.choice(then.law, math.prod(then.shape or (1,)), then.parameters, now.parameters)
            if epsilon is None:
                self.fault("data_dependent_law", f"the parameters of {then.law} depend on the data", then.where, False)
                self.left.append(f"the parameters of {then.law} depend on the data")
            else:
                self.pure += epsilon
        return coins

    def _observed(self, coins: list[str]) -> set[int]:
        """Examines what was computed from noisy values other than sums. Returns the ids whose values were only
        compared with others, so that the output may reveal less than the value itself, and adds to ``coins`` the
        places where uniform numbers were used independently of the data."""
        hidden: set[int] = set()
        for k in range(self.aligned):
            then, now = self.then.nodes[k], self.now.nodes[k]
            if then.kind == "compared":
                coins += self._compared(then, now, hidden)
            elif then.kind == "observed":
                for one in then.inputs:
                    tag, other = self.then.nodes[one].tag, self.now.nodes[one].tag
                    ids = tag.ids[tag.ids >= 0]
                    self.observed.update(ids.tolist())
                    laws = {self.then.blocks[number].law for number in np.unique(self.then.law_of(ids))}
                    if "uniform" in laws and np.array_equal(tag.offset, other.offset):
                        coins.append(then.where)
        return hidden

    def _compared(self, then: Any, now: Any, hidden: set[int]) -> list[str]:
        tag, other = then.tag, now.tag
        ids = tag.ids[tag.ids >= 0]
        hidden.update(ids.tolist(), affine.roots(self.then, ids))
        if other.offset.shape != tag.offset.shape:
            return []
        difference = other.offset - tag.offset
        moved = (tag.ids >= 0) & (np.abs(difference) > ROUNDING * np.abs(tag.coefficient))
        blocks = [self.then.blocks[one] for one in np.unique(self.then.law_of(ids))]
        if not moved.any():  # noise that a comparison selects no longer has the distribution that it was drawn from
            return [then.where] * (tag.pure or any(block.law == "uniform" for block in blocks))
        if all(block.law == "uniform" for block in blocks):
            with np.errstate(divide="ignore", invalid="ignore"):
                p, q = (np.clip(-one.offset[moved] / one.coefficient[moved], 0.0, 1.0) for one in (tag, other))
            for one, two in zip(np.atleast_1d(p), np.atleast_1d(q), strict=True):
                self.pure += losses.between(np.array([one, 1 - one]), np.array([two, 1 - two]))
        else:
            self._elements(then, now, False)
        return []

    def _entries(self, hidden: set[int]) -> None:
        """Adds the values that noise hid first, if they were used further and are not in the output themselves."""
        known = {element.id for element in self.elements if element.ratio}
        for one, k in self.now.entries.items():
            if k < self.aligned and (one not in known or one in self.observed):
                self._elements(self.then.nodes[k], self.now.nodes[k], False, only=one, passing=True)

    def _lent(self, leaves: list[int]) -> None:
        """Leaves open whatever is computed from released values together with the bare noise of another release."""
        entered = set(self.now.entries.values())
        for k in leaves:
            node = self.then.nodes[k]
            numbers = np.unique(self.then.law_of(node.tag.ids[node.tag.ids >= 0]))
            if node.kind in ("compared", "observed") or not any(self.then.blocks[one].parents for one in numbers):
                continue
            waiting, known = [k], {k}
            while waiting:
                one = waiting.pop()
                made = self.then.nodes[one]
                if one in entered:
                    continue
                if made.tag.pure and self.now.entries.keys() & set(np.ravel(made.tag.ids).tolist()):
                    self.left.append(f"noise of other releases is part of the noise at {node.where}")
                if not made.tag.pure:
                    waiting += [each for each in made.inputs if each not in known]
                    known.update(made.inputs)

    def _release(self, k: int, hidden: set[int], *, seen: bool, tagged: bool) -> None:
        then, now = self.then.nodes[k], self.now.nodes[k]
        ids = then.tag.ids[then.tag.ids >= 0]
        compared = seen and hidden and hidden & (set(ids.tolist()) | affine.roots(self.then, ids))
        self._elements(then, now, seen and not compared)
        if then.tag.ids.shape != now.tag.ids.shape:
            return
        bare = (then.tag.ids < 0) & (now.tag.ids < 0)
        moved = bare & ~np.asarray(same(np.asarray(then.tag.offset), np.asarray(now.tag.offset)))
        moved &= ~(np.abs(then.tag.offset - now.tag.offset) <= 1e-12 * np.abs(then.tag.offset))
        if moved.any():
            at = np.argwhere(moved)[0].tolist()
            sentence = (
                f"no noise is added to {int(moved.sum())} of {moved.size} numbers, the first at {at}, which differ"
            )
            self.fault("missing_noise", f"{sentence} between the inputs", then.where, tagged)

    def _elements(self, then: Any, now: Any, seen: bool, only: int | None = None, passing: bool = False) -> None:
        tag, other = then.tag, now.tag
        flat = [
            np.ravel(one) for one in (tag.ids, tag.offset, tag.coefficient, other.ids, other.offset, other.coefficient)
        ]
        if flat[0].size == 0 or flat[0].shape != flat[3].shape:
            return
        followed = np.ravel(self.now.same.get(tag.node, np.zeros(flat[0].shape, bool)))
        numbers = self.then.law_of(flat[0])
        for id0, o0, c0, id1, o1, c1, number, follows in zip(*flat, numbers, followed, strict=True):
            if (id0 < 0 and id1 < 0) or (only is not None and id0 != only):
                continue
            if follows and o0 != o1 and int(id0) not in self.now.entries:
                continue  # a sum of released values, which reveals no more than they do
            block = self.then.blocks[number] if id0 >= 0 else self.now.blocks[int(self.now.law_of(np.array([id1]))[0])]
            exchanged = False
            if id0 != id1 or c0 != c1:
                exchanged = self._exchanged(block, then.where, (int(id0), c0), (int(id1), c1))
                if abs(abs(c0) - abs(c1)) > ROUNDING * max(abs(c0), abs(c1)):
                    self._two_scales(block, then.where, (o0, c0), (o1, c1), seen and not exchanged)
            difference = o1 - o0
            if math.isnan(difference):
                difference = 0.0 if str(o0) == str(o1) else math.inf
            scale = abs(c0) if c0 else abs(c1)
            ratio = abs(difference) / scale
            rounding = max(ROUNDING, 1e-14 * (abs(o0) + abs(o1)) / scale if math.isfinite(o0 + o1) else 0.0)
            ratio = 0.0 if ratio <= rounding else ratio
            shift = math.copysign(ratio, difference) * math.copysign(1.0, c0 or c1)
            one = int(id0 if id0 >= 0 else id1)
            shown = seen and not exchanged
            self.elements.append(Element(one, block, ratio, shift, abs(difference), scale, shown, then.where, passing))

    def _exchanged(self, block: Block, where: str, p: tuple[int, float], q: tuple[int, float]) -> bool:
        """Tells whether the data decide which noise is added, or with which sign, so that the same noise in both runs
        is not the one that bounds the loss."""
        if min(p[0], q[0]) < 0 or (p[0] == q[0] and p[1] * q[1] > 0):
            return False
        self.exchanged = True
        self.left.append(f"which {block.law} noise is added at {where}, or with which sign, depends on the data")
        return True

    def _two_scales(
        self, block: Block, where: str, p: tuple[float, float], q: tuple[float, float], seen: bool
    ) -> None:
        sentence = (
            f"the scale of {block.law} noise depends on the data: {abs(p[1]):.6g} for x0, {abs(q[1]):.6g} for x1"
        )
        claim, proves = self.claim, False
        if seen and not self.bad_scale and claim is not None and not claim.is_curve:
            if p[1] == 0 or q[1] == 0:
                proves = block.law in CONTINUOUS
            elif block.law in ("laplace", "gaussian"):
                proves = claim.delta == 0 or losses.two_scales(block.law, *p, *q, claim.epsilon) > claim.delta
        self.bad_scale = True
        if not block.parents:  # otherwise the weight of released values may be what depends on the data
            self.fault("data_dependent_scale", sentence, where, proves)
        self.left.append("the scale of noise depends on the data")

    def _composed(self) -> tuple[Loss, Loss]:
        """Composes all releases, and those that were returned, each noise once."""
        by_noise: dict[int, list[Element]] = {}
        for element in self.elements:
            by_noise.setdefault(self.same_noise.get(element.id, element.id), []).append(element)
        whole: dict[str, list[float]] = {"laplace": [], "gaussian": []}
        returned: dict[str, list[float]] = {"laplace": [], "gaussian": []}
        beyond: dict[bool, list[tuple[str, float]]] = {False: [], True: []}  # of all, and of those returned
        apart, shared = 0.0, self._shared()
        for uses in by_noise.values():
            seen = [one for one in uses if one.seen]
            if self._reused(uses, seen):
                apart = 1.0
            worst = max(uses, key=lambda one: one.ratio)
            if not worst.ratio:
                continue
            shown = max(seen, key=lambda one: one.ratio) if seen else None
            if worst.block.draw in self.constant:
                sentence = f"{worst.block.law} noise is the same in every run, so anyone who knows it can subtract it"
                place = self.then.draws[worst.block.draw].where
                self.fault("constant_seed", sentence, place, shown is not None and shown.ratio > 0)
                apart = max(apart, float(shown is not None))
            if worst.block.lattice:
                steps = worst.ratio / worst.block.lattice
                if abs(steps - round(steps)) > 1e-6:
                    sentence = "the noise is on a grid and the value is not, so the remainder reveals the value"
                    proves = shown is not None and shown.ratio > 0
                    self.fault("rounded_noise", sentence, worst.where, proves)
                    apart = max(apart, float(proves))
            if worst.block.parents & shared or not worst.block.disjoint:
                self.left.append(f"noise of other releases is part of the noise at {worst.where}")
            if worst.block.law in whole:
                whole[worst.block.law].append(worst.ratio)
                if shown is not None and shown.ratio and not worst.block.lattice:
                    returned[worst.block.law].append(shown.ratio)
            elif worst.block.law in APART and not worst.block.parents and shown is not None:
                beyond[False].append((worst.block.law, worst.shift))
                beyond[True].append((worst.block.law, shown.shift))
            else:
                self.left.append(f"the law of noise at {worst.where} is not known")
        composed = []
        for least, one, pure in ((False, whole, self.pure), (True, returned, 0.0)):
            mass = max(apart, losses.apart(beyond[least], least=least))
            composed.append(Loss(math.hypot(*one["gaussian"]), tuple(one["laplace"]), pure, mass, least))
        return composed[0], composed[1]

    def _shared(self) -> set[int]:
        """Returns draws that are part of more than one noise."""
        found: set[int] = set()
        known: set[int] = set()
        met = np.unique([element.id for element in self.elements if element.ratio]).astype(int)
        for number, place in zip(met.tolist(), self.then.law_of(met).tolist(), strict=True):
            block = self.then.blocks[place] if number < self.then.size else None
            of = {number} if block is None or not block.parents else set(block.parents)
            if block is None or block.start not in known:  # numbers of one block may share parents by construction
                found |= of & known
            known |= of
        return found

    def _reused(self, uses: list[Element], seen: list[Element]) -> bool:
        shifts = {float(f"{one.shift:.6g}") for one in uses if one.ratio or one.seen}
        if len(shifts) < 2 or self.bad_scale or self.exchanged:
            return False
        shown = {float(f"{one.shift:.6g}") for one in seen}
        places = list(dict.fromkeys(one.where for one in uses))
        if len({float(f"{one.shift:.6g}") for one in uses if not one.passing}) < 2:
            self.left.append(f"what the noise at {places[-1]} hides may also be hidden by other noise")
            return False
        sentence = "one draw hides several values, so their difference reveals them"
        self.fault("noise_reuse", ", also at ".join([sentence, *places[:-1]]), places[-1], len(shown) > 1)
        return len(shown) > 1

    def _noises(self) -> list[Noise]:
        by_place: dict[tuple[Any, ...], dict[int, Element]] = {}
        for element in self.elements:
            draw = element.block.draw
            call = self.then.draws[draw] if draw is not None and draw < len(self.then.draws) else None
            key = (
                call.source if call else "computed of noise",
                element.block.law,
                call.where if call else element.where,
                draw,
            )
            known = by_place.setdefault(key, {}).get(element.id)
            if known is None or element.ratio > known.ratio:
                by_place[key][element.id] = element
        noises = []
        delta = 0.0 if self.claim is None or self.claim.is_curve else self.claim.delta
        for (source, law, where, _), found in by_place.items():
            norm = NORM.get(law, 1.0)
            difference = float(np.linalg.norm([one.difference if one.ratio else 0.0 for one in found.values()], norm))
            ratios = [one.ratio for one in found.values() if one.ratio]
            alone = {"laplace": Loss(ratios=tuple(ratios)), "gaussian": Loss(math.hypot(*ratios) if ratios else 0.0)}
            epsilon = alone[law].epsilon(delta) if law in alone else None
            scale = max(one.scale for one in found.values())
            seen = all(one.seen for one in found.values())
            noises.append(Noise(source, law, where, len(found), scale, difference, norm, epsilon, seen))
        return noises
