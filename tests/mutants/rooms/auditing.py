"""Faults of the bounds, the games behind them and the attacks."""

from tests.mutants.mutant import of

MUTANTS = [
    *of(
        "dpaudit/auditing/bounds/betting",
        "auditing/test_betting",
        ("ON_EXPECTED_GAP, ON_GAPS, ON_SIDES = 0.6, 0.2, 0.2", "ON_EXPECTED_GAP, ON_GAPS, ON_SIDES = 0.8, 0.2, 0.2"),
        ("+ (2 * pairs - errors) * right)", "+ (pairs - errors) * right)"),
        ("np.log1p(-c * delta / u)", "np.log1p(c * delta / u)"),
        ("betaln(0.5, 0.5)", "betaln(1.0, 1.0)"),
        ("- likelihood + np.log(alpha), -1e300", "- likelihood - np.log(alpha), -1e300"),
        (
            "return both_wrong + counts[..., BOTH], both_wrong + counts[..., NONE]",
            "return both_wrong + counts[..., NONE], both_wrong + counts[..., BOTH]",
        ),
        ("counts[..., NONE] + 2 * counts[..., FALSE_ALARM]", "counts[..., NONE] + counts[..., FALSE_ALARM]"),
    ),
    *of(
        "dpaudit/auditing/bounds/sequential",
        "auditing/test_sequential",
        ("alpha = (1 - watch.confidence) / 2", "alpha = 1 - watch.confidence"),
        ("counts = watch.counts + betting.outcomes", "counts = betting.outcomes"),
        ("last = int(np.argmax(stop)) if stop.any()", "last = len(counts) - 1 if stop.any()"),
        ("trials=2 * (aside + pairs)", "trials=2 * pairs"),
    ),
    *of(
        "dpaudit/auditing/bounds/estimate",
        "auditing/test_estimate",
        ("_log_ratio(1 - delta - fpr, fnr)", "_log_ratio(1 - fpr, fnr)"),
        ("n - np.maximum(k, 1) + 1, alpha)", "n - np.maximum(k, 1) + 1, 2 * alpha)"),
        ("np.where(k == n, 1.0, inner)", "inner"),
        ("alpha = (1 - confidence) / 2", "alpha = 1 - confidence"),
        ("guesses = (scores > threshold) | np.isnan(scores)", "guesses = (scores >= threshold) | np.isnan(scores)"),
    ),
    *of(
        "dpaudit/auditing/bounds/band",
        "auditing/test_band",
        ("np.sqrt(np.log(1 / alpha) / (2 * n))", "np.sqrt(np.log(1 / alpha) / (4 * n))"),
        (
            "alpha = (1 - _validate.open_unit(confidence=confidence)) / 2",
            "alpha = 1 - _validate.open_unit(confidence=confidence)",
        ),
        ("low = [1 - bounds[::-1] for bounds in high]", "low = [bounds[::-1] for bounds in high]"),
    ),
    *of(
        "dpaudit/auditing/bounds/credible",
        "auditing/test_credible",
        ("PRIOR = 0.5", "PRIOR = 1.0"),
        ("wing + square / 2", "wing + square"),
        (
            "alpha = (1 - _validate.open_unit(confidence=confidence)) / 2",
            "alpha = 1 - _validate.open_unit(confidence=confidence)",
        ),
    ),
    *of(
        "dpaudit/auditing/bounds/gdp",
        "auditing/test_gdp",
        ("-ndtri(fpr) - ndtri(fnr))", "-ndtri(fpr))"),
        ("log_ndtr(mu / 2 - epsilon / mu)", "log_ndtr(mu - epsilon / mu)"),
        ("+ 2 * ndtri((1 + delta) / 2)", "- 2 * ndtri(delta / 2)"),
        (
            "alpha = (1 - _validate.open_unit(confidence=confidence)) / 2",
            "alpha = 1 - _validate.open_unit(confidence=confidence)",
        ),
    ),
    *of(
        "dpaudit/auditing/bounds/one_run",
        "auditing/test_one_run",
        ("delta, below) - alpha, zero", "delta, below) - 2 * alpha, zero"),
    ),
    *of(
        "dpaudit/auditing/attacks/distinguish",
        "auditing/test_distinguish",
        ("return log_prob(release, x1) - log_prob(release, x0)", "return log_prob(release, x1)"),
        ("return (total1 - total0) / PILOT", "return total1 / PILOT"),
    ),
    *of(
        "dpaudit/auditing/domain",
        "auditing/test_domain",
        ("return x0, x0 + clip(x1 - x0, distance, ord)", "return x0, x0 + clip(x1 - x0, 2 * distance, ord)"),
        ('if neighbouring == "replace" else 0', 'if neighbouring == "replace" else 1'),
    ),
    *of(
        "dpaudit/audits/engines",
        "audits/test_engines",
        ("guess = ahead(z - angle // 2) & ~tie", "guess = ahead(z - angle // 2)"),
        ("direction, direction + HALF)", "direction, direction + QUARTER)"),
        (
            "side1, side0 = ahead(z - angle + QUARTER), ahead(z + QUARTER)",
            "side1, side0 = ahead(z - angle), ahead(z + QUARTER)",
        ),
        ('"epsilon": losses[index // (2 * repeats)]', '"epsilon": losses[index // 2 % 2]'),
        ("jnp.where(there0, inner0, -inner1)", "inner0"),
        ("g = pair[number]", "g = pair[0]"),
        ("2 * jnp.arange(repeats * losses) + number", "2 * jnp.arange(repeats * losses)"),
        ("jnp.sum(units[1] * z)", "jnp.sum(units[0] * z)"),
        ("unit * TOGETHER + play // of_one", "unit + play // of_one"),
        ("if float(device.compute_capability) < HOPPER:", "if False:"),
    ),
    *of(
        "dpaudit/_engine/game",
        "_engine/test_game",
        ("jnp.arange(blocks, dtype=jnp.uint32))\n", "jnp.zeros(blocks, dtype=jnp.uint32))\n"),
        ("scored(key, 1)", "scored(key, 0)"),
        ("return jax.lax.map(one, starts)", "return jax.lax.map(one, starts[::-1])"),
    ),
    *of(
        "dpaudit/auditing/tally",
        "auditing/test_count",
        ("counted = (early <= number)", "counted = (early < number)"),
        ("counted = (early <= number) & (number < there)", "counted = early <= number"),
        ("game.first(played, there)[early:]", "game.first(played, there)"),
        ("one - both, other - both", "other - both, one - both"),
        ("np.count_nonzero(ranks > further, axis=1)", "np.count_nonzero(ranks >= further, axis=1)"),
    ),
    *of(
        "dpaudit/auditing/count",
        "auditing/test_audit_estimators",
        ("beyond = (own[..., None] > account.bars)", "beyond = (own[..., None] < account.bars)"),
    ),
    *of(
        "dpaudit/auditing/count",
        "auditing/test_audit",
        ("low=np.minimum(account.low, ~ends[:2])", "low=np.minimum(account.low, ends[:2])"),
    ),
    *of(
        "dpaudit/auditing/bounds/plan",
        "auditing/test_plan auditing/test_plan_trials",
        ("return (1 - delta) * float(expit(-epsilon))", "return float(expit(-epsilon))"),
    ),
    *of(
        "dpaudit/auditing/result",
        "auditing/test_result auditing/test_edges",
        ("if self.epsilon_lower > self.claim.epsilon", "if self.epsilon_lower >= self.claim.epsilon"),
        (
            "if self.reason or self.ceiling <= self.claim.epsilon",
            "if self.reason or self.ceiling < self.claim.epsilon",
        ),
        (
            "if self.reason or self.ceiling <= self.claim.epsilon",
            "if self.ceiling <= self.claim.epsilon",
        ),
    ),
    *of(
        "dpaudit/auditing/conclude",
        "auditing/test_result auditing/test_edges",
        (
            "epsilon_upper=upper,\n        accuracy=1 - (fpr + fnr) / 2,",
            "epsilon_upper=upper,\n        accuracy=1 - (fpr + fnr),",
        ),
    ),
    *of(
        "dpaudit/auditing/bounds/roots",
        "auditing/bounds/test_roots",
        ("np.where(found.f_bracket[0] >= 0, low, high)", "np.where(found.f_bracket[0] <= 0, low, high)"),
        ("one_sign = found.status == -1", "one_sign = found.status == 0"),
        ('"xatol": tolerance', '"xatol": 1e6 * tolerance'),
        ("xtol=tolerance", "xtol=1e6 * tolerance"),
    ),
    *of(
        "dpaudit/audits/craft",
        "audits/test_craft",
        (
            "second = (first + jax.random.randint(second_key, (), 1, n)) % n",
            "second = (first + jax.random.randint(second_key, (), 0, n)) % n",
        ),
        ("    return g, -g\n", "    return g, g\n"),
    ),
    *of(
        "dpaudit/auditing/attacks/distinguish",
        "auditing/test_moments",
        ("(z - mean1) ** 2 / variance1", "(z - mean1) ** 2 / variance0"),
    ),
    *of(
        "dpaudit/auditing/search_pairs",
        "auditing/test_search",
        (
            "tied = (ordered[1:] == ordered[:-1])",
            "tied = (ordered[1:] != ordered[1:])",
        ),
    ),
    *of(
        "dpaudit/auditing/given",
        "auditing/test_given",
        ("lambda _: (rows[0][aside:], rows[1][aside:])", "lambda _: rows"),
        ("int((~guesses[1][pairs:]).sum())", "int(guesses[1][pairs:].sum())"),
        ("[leaf[aside:] for leaf in leaves]", "leaves"),
    ),
    *of(
        "dpaudit/auditing/read",
        "auditing/test_given",
        ("< UNLIKELY", "> 0"),
        ("leaf.astype(kind)", "leaf.astype(np.float32)"),
    ),
    *of(
        "dpaudit/auditing/audit",
        "auditing/test_count",
        ("None if checkpoint is None else of_pilot(checkpoint)", "None"),
    ),
    *of(
        "dpaudit/auditing/attacks/scoring",
        "auditing/test_scoring auditing/test_portfolio",
        (
            "return xp.concatenate([numbers[..., arrays.singles], of_tables[..., m:]",
            "return xp.concatenate([numbers[..., arrays.singles], 0 * of_tables[..., m:]",
        ),
        ("few = slice(0, SCREENED)", "few = slice(0, 2)"),
    ),
]
