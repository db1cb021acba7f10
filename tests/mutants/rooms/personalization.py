"""Faults of personalised models: what crosses the boundary, what it costs, and what devices compute."""

from tests.mutants.mutant import of

MUTANTS = [
    *of(
        "dpaudit/personalization/user_level",
        "personalization/test_user_level",
        ("weights * present[:, None],", "weights,"),
        ("keepdims=True), 1) if mean else weights", "keepdims=True), 1)"),
        ("jnp.where(round == memory.number, leaf, jnp.nan)", "leaf"),
        ("if given.most > made_for.most", "if given.most > 2 * made_for.most"),
        ("lambda leaf: leaf / sampling.batch_size, releases[0].value", "lambda leaf: leaf, releases[0].value"),
        (
            "event=lambda rounds: sampling.event(noise_multiplier, rounds, ADD_REMOVE)",
            "event=lambda rounds: sampling.event(noise_multiplier, 1, ADD_REMOVE)",
        ),
    ),
    *of(
        "dpaudit/personalization/boundary/processes",
        "personalization/test_processes",
        ("GaussianDpEvent(multiplier * whole / first)", "GaussianDpEvent(multiplier)"),
        ("sensitivity * multiplier * whole)", "sensitivity * multiplier)"),
        ("add_noise(key, total, sensitivity * multiplier)", "add_noise(key, total, multiplier)"),
        ("PoissonSampledDpEvent(float(rate), ", "PoissonSampledDpEvent(float(rate) / 2, "),
        ("        if n > rounds:\n", "        if n > rounds + 1:\n"),
    ),
    *of(
        "dpaudit/personalization/boundary/transcript",
        "personalization/test_transcript",
        (
            "going[name] = process, length + 1",
            "going[name] = process, number + 1",
            "Both are equal there, or it was refused.",
        ),
        ("if number != length or process is not release.process", "if process is not release.process"),
    ),
    *of(
        "dpaudit/personalization/boundary/budget",
        "personalization/test_transcript",
        ("event.count * one", "one"),
    ),
    *of(
        "dpaudit/personalization/boundary/aggregator",
        "personalization/test_aggregator",
        ("if not release.fresh", "if False"),
        ("if len(set(names)) < len(names)", "if len(set(names)) < 0"),
    ),
    *of(
        "dpaudit/personalization/als/steps",
        "personalization/test_steps_user",
        ("jnp.clip(jnp.nan_to_num(left), -step.rating_clip, step.rating_clip)", "jnp.nan_to_num(left)"),
        ("learned * factor(norms, step.factor_norm)", "learned"),
        ("scale = shared.precision**-0.5", "scale = shared.precision**-1.0"),
    ),
    *of(
        "dpaudit/personalization/als/steps",
        "personalization/test_steps_weights",
        ("(norm * (1 + 1e-6))", "1.0"),
        ("jnp.where(place < most, present, 0)", "jnp.where(place <= most, present, 0)"),
    ),
    *of(
        "dpaudit/personalization/als/solve",
        "personalization/test_solve_symmetric",
        ("np.where(rows == columns, 1.0, np.sqrt(2.0))", "np.where(rows == columns, 1.0, 1.0)"),
        ("return jnp.maximum(values, 0.0), vectors", "return values, vectors"),
    ),
    *of(
        "dpaudit/personalization/als/least_squares",
        "personalization/test_least_squares",
        ("moved = Shares(length**2, rating * length, length**2)", "moved = Shares(length**2, rating, length**2)"),
        ("share**0.5 / most for share", "share / most for share"),
    ),
    *of(
        "dpaudit/personalization/als/solve",
        "personalization/test_solve",
        ("per_rating * jnp.maximum(weights.sum(axis=1, keepdims=True), 1)", "per_rating"),
        ("jnp.sqrt(weights) * values) + pull", "jnp.sqrt(weights) * values)"),
    ),
    *of(
        "dpaudit/personalization/als/steps",
        "personalization/test_steps_items",
        ("+ moment_stddev**2\n", "+ moment_stddev\n"),
        ("evidence + expected / variance)", "evidence)"),
    ),
    *of(
        "dpaudit/personalization/als/layout",
        "personalization/test_layout",
        ("users.items[:, 1:] > users.items[:, :-1]", "users.items[:, 1:] >= users.items[:, :-1]"),
        ("(users.items >= 0) & (users.items < items)", "(users.items < items)"),
    ),
    *of(
        "dpaudit/personalization/als/metrics",
        "personalization/test_metrics",
        ("(predicted - held_out.values) ** 2", "np.abs(predicted - held_out.values)"),
        ("scores[known.get(user, [])] = -np.inf\n", "\n"),
    ),
    *of(
        "dpaudit/personalization/boundary/inference",
        "personalization/test_inference",
        ("return Statistic(encode, 2**0.5, 2, decode)", "return Statistic(encode, 1.0, 2, decode)"),
    ),
    *of(
        "dpaudit/personalization/boundary/channels",
        "personalization/test_channels",
        ("            self._received += 1\n", ""),
        ("(keys[32:], keys[:32])", "(keys[:32], keys[:32])"),
    ),
    *of(
        "dpaudit/audits/user_canary",
        "audits/test_user_canary",
        ("(2 + mu**2 / 4) / scores.shape[1]", "2 * (2 + mu**2 / 4) / scores.shape[1]"),
        ("stddev = recipe.noise_multiplier * strategy", "stddev = strategy"),
    ),
    *of(
        "dpaudit/personalization/als/factored",
        "personalization/test_factored",
        ("jnp.maximum(jnp.sum(ratings.weights), 1)", "1"),
    ),
]
