"""Faults of secret sharing, the circuits, oblivious transfer and the noise that two servers draw."""

from tests.mutants.mutant import of

MUTANTS = [
    *of(
        "dpaudit/secure/crypto/shares",
        "secure/crypto/test_shares",
        (
            "return smod(values.astype(np.int64) + second, half), second",
            "return values.astype(np.int64) + second, second",
        ),
        ("return smod(first - second, _half(ring_bits))", "return smod(first + second, _half(ring_bits))"),
        ("outside = (values < -half) | (values >= half)", "outside = (values < -half) | (values > half)"),
    ),
    *of(
        "dpaudit/secure/protocol/fixed_point",
        "secure/protocol/test_fixed_point",
        ("np.trunc(rows", "np.rint(rows"),
        ("SLACK = 1e-4", "SLACK = 1e-1"),
        ("return total * scale.unit", "return total / scale.unit"),
        ("yield start, rows\n", "yield 0, rows\n"),
        ("total += rows.sum(axis=0)", "total = rows.sum(axis=0)"),
    ),
    *of(
        "dpaudit/secure/service/session",
        "training/test_two_servers",
        ("prepared, self._next = self._next, None", "prepared = self._next"),
    ),
    *of(
        "dpaudit/secure/protocol/transfer_noise",
        "secure/protocol/test_transfer_noise",
        ("<< _NUMBER.type(exponents[0])", "<< _NUMBER.type(0)"),
        ("parts << exponents.astype(_NUMBER)[:, None]", "parts << exponents.astype(_NUMBER)[::-1, None]"),
        ("for bit in reversed(range(places.shape[1])):", "for bit in range(places.shape[1]):"),
        ("numbers & _NUMBER.type(1 << bit), 0", "numbers & _NUMBER.type(2 << bit), 0"),
    ),
    *of(
        "dpaudit/secure/protocol/fixed_point",
        "secure/protocol/test_fixed_point_scale",
        ("- 1 - examples * self.levels", "- examples * self.levels // 2"),
        ("math.sqrt(2 * math.log(2 / ", "math.sqrt(math.log(2 / "),
    ),
    *of(
        "dpaudit/secure/noise/gaussian",
        "secure/noise/test_gaussian",
        ('SENSITIVITY = {"replace": 2', 'SENSITIVITY = {"replace": 1'),
        ("moved = _sensitivity(neighbouring) * math.sqrt(", "moved = _sensitivity(neighbouring) * float("),
        ("1.25 / _validate.open_unit", "1.0 / _validate.open_unit"),
    ),
    *of(
        "dpaudit/secure/noise/gaussian",
        "secure/noise/test_gaussian_discrete",
        ("np.uint64(2 * sigma * sigma)", "np.uint64(sigma * sigma)"),
        ("[~(negative & (size == 0))]", ""),
        ("fair = words >= -bound % bound", "fair = words >= 0"),
    ),
    *of(
        "dpaudit/secure/noise/binomial",
        "secure/noise/test_binomial",
        ("self.coins / 4 + 1 / 6) - 1 / 6", "self.coins / 4 + 1 / 6)"),
        ("return (self.coins + 2) * self.step // 2 - 1", "return (self.coins + 2) * self.step // 2"),
        ("return noise.step * heads + uniforms - noise.reach", "return noise.step * heads + uniforms"),
        ("np.tile(1 << np.arange(noise.step_bits), 2)", "np.tile(1 << np.arange(noise.step_bits)[::-1], 2)"),
    ),
    *of(
        "dpaudit/secure/noise/accounting",
        "secure/noise/test_accounting_one_coordinate",
        ("(2 * first + terms - 1) / 2", "(2 * first + terms) / 2"),
        ("probabilities(noise, nodes - shift)", "probabilities(noise, nodes + 2 * shift)"),
    ),
    *of(
        "dpaudit/secure/circuits/circuit",
        "secure/circuits/test_circuit_arithmetic",
        ("return [*total, carry]", "return [*total, ZERO]"),
        ("for wire in y], ONE)[:-1]", "for wire in y], ZERO)[:-1]"),
    ),
    *of(
        "dpaudit/secure/circuits/circuit",
        "secure/circuits/test_circuit",
        ("return b if a == ZERO else a", "return b if a == ONE else a"),
        ("return b if a == ONE else a", "return b if a == ZERO else a"),
    ),
    *of(
        "dpaudit/secure/circuits/garbling",
        "secure/circuits/test_garbling",
        ("np.bitwise_and(b[0], _LAST, out=out[1])", "np.bitwise_and(a[0], _LAST, out=out[1])"),
        ("or not delta[0] & 1", ""),
    ),
    *of(
        "dpaudit/secure/circuits/garbling",
        "secure/circuits/test_garbling_hash",
        ("np.bitwise_xor(label[0], label[1], out=out[:, 0])", "np.bitwise_or(label[0], label[1], out=out[:, 0])"),
        ("if (chunk, gate) <= self._last", "if (chunk, gate) < self._last"),
    ),
    *of(
        "dpaudit/secure/crypto/correlated_transfers",
        "secure/crypto/test_correlated_transfers",
        ("rows ^= corrections.reshape(-1, 1, width) & self._masks", "rows ^= corrections.reshape(-1, 1, width)"),
        ("if count > LIMIT - used", "if count > LIMIT"),
    ),
    *of(
        "dpaudit/secure/crypto/correlated_transfers",
        "secure/crypto/test_correlated_transfers_trees",
        ("np.stack([hole_side, 1 - hole_side])", "np.stack([hole_side, hole_side])"),
    ),
    *of(
        "dpaudit/secure/crypto/base_transfers",
        "secure/crypto/test_base_transfers",
        ("+ sender + receiver + product", "+ sender + receiver"),
        ("np.arange(COUNT), choices.astype(int)", "np.arange(COUNT), 0 * choices.astype(int)"),
        ("multiply(each, point)) for each in numbers", "multiply(number, point)) for each in numbers"),
    ),
    *of(
        "dpaudit/secure/crypto/base_transfers",
        "secure/crypto/test_base_transfers_points",
        ("pow(a * r % _ORDER, -1, _ORDER) % _ORDER", "pow(a, -1, _ORDER) % _ORDER"),
    ),
    *of(
        "dpaudit/secure/crypto/correlated_transfers",
        "secure/crypto/test_correlated_transfers_transpose",
        ("moved ^= lower\n", "moved |= lower\n"),
    ),
    *of(
        "dpaudit/secure/protocol/schemes",
        "secure/protocol/test_schemes",
        ("math.sqrt(2) * step.noise_multiplier", "step.noise_multiplier"),
        ("partial(_normal, std * step.clip_norm)", "partial(_normal, std)"),
        ("units = math.ceil(multiplier * found.levels)", "units = math.floor(multiplier * found.levels)"),
    ),
    *of(
        "dpaudit/secure/protocol/two_server_sum",
        "secure/protocol/test_two_server_sum_reveal",
        ("(values >= -half) & (values < half)", "(values >= -half) & (values <= half)"),
    ),
    *of(
        "dpaudit/secure/protocol/norm_check",
        "secure/protocol/test_norm_check",
        ("bits = 2 * (ring_bits - 1) + dimension.bit_length() + 1", "bits = ring_bits"),
        ("- WORD.type(half) - (self._times", "- (self._times"),
        (
            "half) - (self._times(wrap, 1) << (ring_bits + 1))",
            "half) - 0 * (self._times(wrap, 1) << (ring_bits + 1))",
        ),
        ("(numbers[part] << bit)", "numbers[part]"),
        ("WORD.type(bound) - squares", "WORD.type(bound - 1) - squares"),
        ("return builder.build([builder.negation(carry)])", "return builder.build([carry])"),
        ("share[part] -= zero", "share[part] -= one"),
    ),
    *of(
        "dpaudit/secure/service/server",
        "secure/service/test_server_norms",
        ("if owner not in long)", "if owner)"),
    ),
    *of(
        "dpaudit/secure/service/inbox",
        "secure/service/test_server_norms",
        ("if self._refused.get(owner) == split", "if owner in self._refused"),
    ),
    *of(
        "dpaudit/secure/service/inbox",
        "secure/service/test_inbox",
        ("outside = (share < -half) | (share >= half)", "outside = share < -half"),
        ("if earlier_split != split or not", "if not"),
    ),
    *of(
        "dpaudit/secure/service/records",
        "secure/service/test_records",
        ("if step != self.completed + 1", "if step < self.completed + 1"),
    ),
    *of(
        "dpaudit/secure/noise/lookup",
        "secure/noise/test_lookup_circuit",
        (
            "builder.build(add(builder, share, signed, negative)[:-1])",
            "builder.build(add(builder, share, signed, ZERO)[:-1])",
        ),
    ),
]
