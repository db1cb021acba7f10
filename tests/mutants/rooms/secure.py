"""Faults of secret sharing, the circuits, oblivious transfer and the noise that two servers draw."""

from tests.mutants.mutant import of

MUTANTS = [
    *of(
        "dpaudit/secure/shares",
        "secure/test_shares",
        (
            "return smod(values.astype(np.int64) + second, half), second",
            "return values.astype(np.int64) + second, second",
        ),
        ("return smod(first - second, _half(ring_bits))", "return smod(first + second, _half(ring_bits))"),
        ("outside = (values < -half) | (values >= half)", "outside = (values < -half) | (values > half)"),
    ),
    *of(
        "dpaudit/secure/quantize",
        "secure/test_quantize",
        ("np.trunc(rows", "np.rint(rows"),
        ("SLACK = 1e-4", "SLACK = 1e-1"),
        ("return total * scale.unit", "return total / scale.unit"),
    ),
    *of(
        "dpaudit/secure/scale",
        "secure/test_scale",
        ("- 1 - examples * self.levels", "- examples * self.levels // 2"),
        ("math.sqrt(2 * math.log(2 / ", "math.sqrt(math.log(2 / "),
    ),
    *of(
        "dpaudit/secure/sigma",
        "secure/test_sigma",
        ('SENSITIVITY = {"replace": 2', 'SENSITIVITY = {"replace": 1'),
        ("moved = _sensitivity(neighbouring) * math.sqrt(", "moved = _sensitivity(neighbouring) * float("),
        ("1.25 / check.open_unit", "1.0 / check.open_unit"),
    ),
    *of(
        "dpaudit/secure/discrete_gaussian",
        "secure/test_discrete_gaussian",
        ("np.uint64(2 * sigma * sigma)", "np.uint64(sigma * sigma)"),
        ("[~(negative & (size == 0))]", ""),
        ("fair = words >= -bound % bound", "fair = words >= 0"),
    ),
    *of(
        "dpaudit/secure/noise",
        "secure/test_noise",
        ("self.coins / 4 + 1 / 6) - 1 / 6", "self.coins / 4 + 1 / 6)"),
        ("return (self.coins + 2) * self.step // 2 - 1", "return (self.coins + 2) * self.step // 2"),
        ("return noise.step * heads + uniforms - noise.reach", "return noise.step * heads + uniforms"),
        ("np.tile(1 << np.arange(noise.step_bits), 2)", "np.tile(1 << np.arange(noise.step_bits)[::-1], 2)"),
    ),
    *of(
        "dpaudit/secure/one_coordinate",
        "secure/test_one_coordinate",
        ("(2 * first + terms - 1) / 2", "(2 * first + terms) / 2"),
        ("probabilities(noise, nodes - shift)", "probabilities(noise, nodes + 2 * shift)"),
    ),
    *of(
        "dpaudit/secure/arithmetic",
        "secure/test_arithmetic",
        ("return [*total, carry]", "return [*total, ZERO]"),
        ("for wire in y], ONE)[:-1]", "for wire in y], ZERO)[:-1]"),
    ),
    *of(
        "dpaudit/secure/circuit",
        "secure/test_circuit",
        ("return b if a == ZERO else a", "return b if a == ONE else a"),
        ("return b if a == ONE else a", "return b if a == ZERO else a"),
    ),
    *of(
        "dpaudit/secure/garbling",
        "secure/test_garbling",
        ("np.bitwise_and(b[0], _LAST, out=out[1])", "np.bitwise_and(a[0], _LAST, out=out[1])"),
        ("or not delta[0] & 1", ""),
    ),
    *of(
        "dpaudit/secure/aes_hash",
        "secure/test_aes_hash",
        ("np.bitwise_xor(label[0], label[1], out=out[:, 0])", "np.bitwise_or(label[0], label[1], out=out[:, 0])"),
        ("if (chunk, gate) <= self._last", "if (chunk, gate) < self._last"),
    ),
    *of(
        "dpaudit/secure/cot",
        "secure/test_cot",
        ("rows ^= corrections.reshape(-1, 1, width) & self._masks", "rows ^= corrections.reshape(-1, 1, width)"),
        ("if count > LIMIT - used", "if count > LIMIT"),
    ),
    *of(
        "dpaudit/secure/ggm",
        "secure/test_ggm",
        ("np.stack([hole_side, 1 - hole_side])", "np.stack([hole_side, hole_side])"),
    ),
    *of(
        "dpaudit/secure/base_ot",
        "secure/test_base_ot",
        ("+ sender + receiver + product", "+ sender + receiver"),
        ("np.arange(COUNT), choices.astype(int)", "np.arange(COUNT), 0 * choices.astype(int)"),
    ),
    *of(
        "dpaudit/secure/p256",
        "secure/test_p256",
        ("x = (slope * slope - p.x - q.x) % _FIELD", "x = (slope * slope - p.x) % _FIELD"),
        ("_FIELD - p.y, _CURVE", "p.y, _CURVE"),
    ),
    *of(
        "dpaudit/secure/transpose",
        "secure/test_transpose",
        ("moved ^= lower\n", "moved |= lower\n"),
    ),
    *of(
        "dpaudit/secure/schemes",
        "secure/test_schemes",
        ("math.sqrt(2) * step.noise_multiplier", "step.noise_multiplier"),
        ("partial(_normal, std * step.clip_norm)", "partial(_normal, std)"),
        ("units = math.ceil(multiplier * found.levels)", "units = math.floor(multiplier * found.levels)"),
    ),
    *of(
        "dpaudit/secure/reveal",
        "secure/test_reveal",
        ("(values >= -half) & (values < half)", "(values >= -half) & (values <= half)"),
    ),
    *of(
        "dpaudit/secure/inbox",
        "secure/test_inbox",
        ("outside = (share < -half) | (share >= half)", "outside = share < -half"),
        ("if earlier_split != split or not", "if not"),
    ),
    *of(
        "dpaudit/secure/records",
        "secure/test_records",
        ("if step != self.completed + 1", "if step < self.completed + 1"),
    ),
    *of(
        "dpaudit/secure/table_circuit",
        "secure/test_table_circuit",
        (
            "builder.build(add(builder, share, signed, negative)[:-1])",
            "builder.build(add(builder, share, signed, ZERO)[:-1])",
        ),
    ),
]
