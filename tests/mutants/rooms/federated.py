"""Faults of federated rounds: who takes part, what is sent, the clip rules and what rounds cost."""

from tests.mutants.mutant import of

MUTANTS = [
    *of(
        "dpaudit/federated/rounds",
        "federated/test_rounds",
        ("_released(rule, rule_key, state, sent.norms)", "_released(rule, noise_key, state, sent.norms)"),
        (
            "partial(jax.random.fold_in, key))(places), params",
            "partial(jax.random.fold_in, key))(jnp.arange(size)), params",
        ),
        ("mean = jax.tree.map(lambda leaf: leaf / m, total)", "mean = total"),
        ("clipped=jnp.sum(finite & (sent.norms > clip_norm))", "clipped=jnp.sum(sent.norms > clip_norm)"),
        ("(state.round + 1) % rule.every == 0, now", "state.round % rule.every == 0, now"),
        ('EDGES, jnp.float32), sent.norms, side="right")', 'EDGES, jnp.float32), sent.norms + 1, side="right")'),
    ),
    *of(
        "dpaudit/federated/clients",
        "federated/test_clients",
        ("clip_norm * noise_multiplier * jnp.sqrt(clients)", "clip_norm * noise_multiplier"),
        ("loss_fn(params, example) / n,", "loss_fn(params, example),"),
        ("factor = clip_norm * ldp_sgd", "factor = ldp_sgd"),
        ("jnp.where(sound, factors, 0), kept)", "factors, updates)"),
    ),
    *of(
        "dpaudit/federated/clip_size",
        "federated/test_clip_size",
        ("jnp.where(t < first, before, after)", "jnp.where(t <= first, before, after)"),
        ("before = jnp.clip(t - 1, 0, total)", "before = jnp.clip(t, 0, total)"),
        ("centred = jnp.sum(reports.astype(jnp.float32) - 0.5)", "centred = jnp.sum(reports.astype(jnp.float32))"),
        ("jnp.exp(-learning_rate * (released - quantile))", "jnp.exp(learning_rate * (released - quantile))"),
        ("dp_accounting.GaussianDpEvent(noise_std / 0.5)", "dp_accounting.GaussianDpEvent(noise_std)"),
        ("(bounds[1:] + bounds[:-1]) / 2", "bounds[1:]"),
        ("jnp.cumsum(released)[:-1] > 0.5", "jnp.cumsum(released)[:-1] > 0.4"),
    ),
    *of(
        "dpaudit/federated/clip_size",
        "federated/test_clip_size_noise_budget",
        ("state.left - (noise * state.clip_norm) ** 2, 0)", "state.left, 0)"),
    ),
    *of(
        "dpaudit/federated/population",
        "federated/test_population",
        ("1 / (1 + every / alpha)", "1 / (1 + every)"),
        ("jnp.append(True, ranked[1:] != ranked[:-1])", "jnp.append(True, ranked[1:] == ranked[1:])"),
        ("(high * wide + (low * wide >> word)) >> word", "(high * wide) >> word << np.uint64(0) & ~np.uint64(1)"),
    ),
    *of(
        "dpaudit/federated/accounting",
        "federated/test_accounting",
        ("noise_multiplier / (2 * math.sqrt(participations))", "noise_multiplier / math.sqrt(participations)"),
        ("-np.expm1(-losses) + np.exp(-losses) * above", "np.exp(-losses) * above"),
        (
            "allowed = (1 - _validate.open_unit(confidence=confidence)) / clients",
            "allowed = 1 - _validate.open_unit(confidence=confidence)",
        ),
    ),
    *of(
        "dpaudit/audits/federated_canary",
        "audits/test_federated_canary",
        ("weight = np.sum(times**2)", "weight = np.sum(times)"),
        ("half = 2 * _validate.positive", "half = _validate.positive"),
    ),
    *of(
        "dpaudit/audits/client_row",
        "audits/test_ldp_client",
        ("fpr, fnr = guesses[0] / n, 1 - guesses[1] / n", "fpr, fnr = guesses[0] / n, guesses[1] / n"),
    ),
    *of(
        "dpaudit/audits/randomizers",
        "audits/test_randomizers",
        ("(norm1 + norm0) / 2", "(norm1 + norm0)"),
        ("gaussian_noise.mechanism(epsilon=epsilon,", "gaussian_noise.mechanism(epsilon=2 * epsilon,"),
        ("cap.gamma / cap.scale for cap", "cap.gamma for cap"),
    ),
    *of(
        "dpaudit/audits/oracle_gaussian",
        "audits/test_randomizers",
        ("across = np.sin(pair.angle / 2) / sigma", "across = np.sin(pair.angle) / sigma"),
        ("(norm0 - norm1) ** 2 + 4", "(norm0 - norm1) ** 2 + 2"),
        ("sigma *= promised / true", "sigma *= true / promised"),
    ),
    *of(
        "dpaudit/audits/oracle_privunit",
        "audits/test_randomizers",
        ("(dimension - 2) / 2 * np.log1p", "(dimension - 3) / 2 * np.log1p"),
        ("outside * (1 - overlap)) / 2", "outside * (1 - overlap))"),
        ("expit(hit + more) / cap.mass", "expit(hit - more) / cap.mass"),
    ),
    *of(
        "dpaudit/audits/ldp_client",
        "audits/test_ldp_client",
        ("bounds = 2 * datasets", "bounds = datasets"),
    ),
    *of(
        "dpaudit/federated/rounds",
        "federated/test_rounds_simulate",
        ("(loss > WORSE * first)", "(loss > first)"),
    ),
]
