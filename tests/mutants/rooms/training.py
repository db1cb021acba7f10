"""Faults of private training: clipping, sampling, noise and its accounting, and audits of trainings."""

from tests.mutants.mutant import of

MUTANTS = [
    *of(
        "dpaudit/training/sampling",
        "training/test_sampling",
        ("OVERFLOW = 1e-30", "OVERFLOW = 1e-3"),
        (
            "rate = math.ceil(batch_size / examples * GRID) / GRID",
            "rate = math.floor(batch_size / examples * GRID) / GRID",
        ),
        (
            "fold_in(key, step), (examples,))\n        if truncates",
            "fold_in(key, 0), (examples,))\n        if truncates",
        ),
        ("-least < rate", "-least <= 1"),
        ("step % epoch * batch_size, batch_size)", "0 * step, batch_size)"),
    ),
    *of(
        "dpaudit/training/sampling",
        "training/test_accounting training/test_sampling",
        (
            "replaced = dp_accounting.GaussianDpEvent(noise_multiplier / 2)",
            "replaced = dp_accounting.GaussianDpEvent(noise_multiplier)",
        ),
    ),
    *of(
        "dpaudit/training/dp_sgd",
        "training/test_dp_sgd",
        (
            "return add_noise(key, total, clip_norm * noise_multiplier), memory",
            "return add_noise(key, total, noise_multiplier), memory",
        ),
        ("lambda noisy: noisy / batch_size, noised", "lambda noisy: noisy / jnp.sum(weights), noised"),
        ("(stddev * draw).reshape(leaf.shape)", "(stddev * draw.astype(leaf.dtype)).reshape(leaf.shape)"),
        ("opt_state, state.step + 1, memory)", "opt_state, state.step, memory)"),
        (', donate_argnames=("state",))', ")"),
        ("        _copied(start),\n", "        start,\n"),
        ("evaluate(_copied(state.params))", "evaluate(state.params)"),
    ),
    *of(
        "dpaudit/training/per_example",
        "training/test_per_example",
        ("wide(clip_norm) / math.sqrt(len(norms))", "wide(clip_norm)"),
        ("(_whole(norms) + stability)", "_whole(norms)"),
        ("factors = jnp.where(finite, factors, 0)", "factors = 1 * factors"),
        ("losses = losses.reshape(-1, group).sum(axis=1)", "losses = losses.reshape(-1, group).mean(axis=1)"),
    ),
    *of(
        "dpaudit/training/unit_gradients",
        "training/test_per_example training/test_per_example_layers",
        ("jnp.sum(jnp.square(merged), -1) / jnp.sum(same, -1)", "jnp.sum(jnp.square(merged), -1)"),
        (
            "d = jnp.where(((index >= 0) & (index < rows))[..., None], d, 0)",
            "d = jnp.where((index < rows)[..., None], d, 0)",
        ),
    ),
    *of(
        "dpaudit/training/_batch_norm",
        "training/test_other_libraries training/test_per_example",
        ("    if layer is not None:\n        layer.__call__ = _checked(plain)\n", ""),
        ("        if layer is not None:\n            layer.__call__ = plain\n", ""),
    ),
    *of(
        "dpaudit/training/matrix_noise",
        "training/test_matrix_noise",
        ("return math.sqrt(pattern.most)", "return 1.0"),
        ("level = jax.lax.population_count((t & -t) - 1)", "level = jax.lax.population_count(t) - 1"),
        ("best[n - k] + gain for k", "best[n] + gain for k"),
        ("math.sqrt(squared.mean())", "squared.mean()"),
        ("partial(jnp.where, t % every == 0), empty, memory)", "partial(jnp.where, t < 0), empty, memory)"),
        ("disjoint = len(coefficients) <= separation", "disjoint, most = len(coefficients) <= separation, 1"),
    ),
    *of(
        "dpaudit/training/dp_ftrl",
        "training/test_dp_ftrl",
        ('"replace": 2}', '"replace": 1}'),
        ("clip_norm * noise_multiplier * strategy.sensitivity(strategy.pattern)", "clip_norm * noise_multiplier"),
        ("accounted = t < strategy.pattern.rounds", "accounted = t <= strategy.pattern.rounds"),
        ("noise_multiplier / relative, delta", "noise_multiplier * relative, delta"),
    ),
    *of(
        "dpaudit/training/accounting",
        "training/test_accounting",
        (
            "search(pld, ExplicitBracketInterval((1 - NEAR) * guess",
            "search(partial(pld, interval=0.1), ExplicitBracketInterval((1 - NEAR) * guess",
            "The narrow bracket then holds no root, and the whole range is searched as before: 0.93945 for 0.93945 in "
            "a tried case, in twice the time.",
        ),
        ("TOLERANCE = 1e-4", "TOLERANCE = 1e-1"),
        ("INTERVAL = 1e-4", "INTERVAL = 1e-1"),
        ("    if steps == 0:\n        return 0.0\n", "    if steps <= 1:\n        return 0.0\n"),
    ),
    *of(
        "dpaudit/audits/training_canary",
        "audits/test_training_canary",
        ("jnp.log1p(-rate), jnp.log(rate)", "jnp.log(rate), jnp.log(rate)"),
        ("(x - 0.5) / noise_multiplier**2", "x / noise_multiplier**2"),
        ("STRETCH = 100.0", "STRETCH = 0.5"),
        (
            "errors = int(np.sum(guessed & absent)), int(np.sum(~guessed & found.included))",
            "errors = 0, int(np.sum(~guessed & found.included))",
        ),
    ),
    *of(
        "dpaudit/training/sampling",
        "training/test_sampling_schedule",
        ("& (t - last >= separation)", "& (t - last >= 1)"),
        ("(np.diff(rounds) < declared.separation)", "(np.diff(rounds) < 1)"),
    ),
    *of(
        "dpaudit/training/models",
        "training/test_models_dropout",
        ("x / (1 - self.rate), 0)", "x, 0)"),
        ('fair | mask if digit == "1" else fair & mask', 'fair & mask if digit == "1" else fair | mask'),
    ),
    *of(
        "dpaudit/training/dropout/mc_dropout",
        "training/dropout/test_mc_dropout",
        ("share * (1 - share) * jnp.square(apart)", "share * jnp.square(apart)"),
        ("beta * jnp.eye(outputs.shape[-1]) + ", ""),
        ("jnp.maximum(a.maximum, b.maximum)", "jnp.minimum(a.maximum, b.maximum)"),
    ),
    *of(
        "dpaudit/training/dropout/membership",
        "training/dropout/test_membership",
        ("half[own[: len(own) // 2]] = True", "half[own] = True"),
        ("cautious = 1 - (1 - confidence) / CAUTION", "cautious = confidence / CAUTION"),
        (
            "return lambda points: inside((points - center) / spread) - outside((points - center) / spread)",
            "return lambda points: inside((points - center) / spread)",
        ),
    ),
    *of(
        "dpaudit/training/dropout/threshold_search",
        "training/dropout/test_threshold_search",
        (
            "return int(np.sum(guesses & ~member)), int(np.sum(~guesses & member))",
            "return int(np.sum(~guesses & member)), int(np.sum(guesses & ~member))",
        ),
        (
            "allowed = touches & (np.arange(len(axis.levels)) <= branches.corner",
            "allowed = touches & (np.arange(len(axis.levels)) < branches.corner",
        ),
    ),
    *of(
        "dpaudit/training/dropout/publishing",
        "training/dropout/test_publishing",
        ("apart = guesses[1] - guesses[0]", "apart = guesses[1] + guesses[0]"),
        ("found.append((*(_gain", "found.append((*(-_gain"),
        ("student.ppf((1 + confidence) / 2", "student.ppf(confidence / 2"),
    ),
    *of(
        "dpaudit/training/neighbouring",
        "training/test_neighbouring",
        ("step_size * jnp.sign(jax.grad(mean_loss)(x))", "-step_size * jnp.sign(jax.grad(mean_loss)(x))"),
        (".argmax())", ".argmin())"),
    ),
    *of(
        "dpaudit/training/dropout/publishing",
        "training/dropout/test_usefulness",
        ("weights=right - confidence", "weights=right"),
        ("highest.sum(axis=-1) == 1", "highest.sum(axis=-1) >= 1"),
    ),
    *of(
        "dpaudit/training/microbatches",
        "training/test_microbatches training/test_per_example training/test_dp_sgd",
        ("jnp.arange(1, parts + 1), 0))", "jnp.arange(parts), 0))"),
        ("if used % run else done", "if False else done"),
        ("jnp.minimum(run, used - i * run)", "run"),
    ),
    *of(
        "dpaudit/cli/secure_train",
        "training/test_two_servers",
        ("if place not in self._after] or took", "] or took"),
        ("enumerate(took, 1)", "enumerate(took)"),
    ),
    *of(
        "dpaudit/training/two_servers",
        "training/test_two_servers",
        ("dequantize(total, self._scale) / examples", "dequantize(total, self._scale)"),
        ("jax.eval_shape(partial(per_example", "partial(partial(per_example"),
        ("self._size * len(opened.owners)", "self._size"),
        ("order[place * size : (place + 1) * size]", "order[:size]"),
        ("if self._owner.pending < step:", "if True:"),
        ("except BudgetSpent:", "except ZeroDivisionError:"),
        ("if 0 < terms.owner_examples < batch_size", "if 1 > terms.owner_examples > batch_size"),
        ("sensitivity=2 * terms.levels", "sensitivity=terms.levels"),
    ),
]
