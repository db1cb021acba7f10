"""Faults of the mechanisms: what is clipped, how much noise there is, and how its tails are drawn."""

from tests.mutants.mutant import of

MUTANTS = [
    *of(
        "dpaudit/mechanisms/clipping",
        "mechanisms/test_clipping",
        ("if ord == 1 else jnp.sqrt", "if ord == 2 else jnp.sqrt"),
        ("jnp.where(norm > most, most * direction", "jnp.where(norm > most, direction"),
        ("most / norm, 1.0)", "norm / most, 1.0)"),
        ("return scale * norm, scaled", "return norm, scaled"),
    ),
    *of(
        "dpaudit/mechanisms/gaussian",
        "mechanisms/test_gaussian mechanisms/test_contract",
        ("return 2 * clip_norm * dp_accounting", "return clip_norm * dp_accounting"),
        (
            "sampling.normal(key, clipped.shape, clipped.dtype)",
            "sampling.normal(key, clipped.shape[-1:], clipped.dtype)",
        ),
        ("(release - clipped / 2)) / sigma**2", "(release - clipped / 2)) / sigma"),
        ("(release - clipped / 2)", "(release - clipped)"),
        ("clipped = clip(accepted(x), clip_norm)", "clipped = clip(accepted(x), 2 * clip_norm)"),
    ),
    *of(
        "dpaudit/mechanisms/laplace",
        "mechanisms/test_laplace",
        ("jnp.trunc(clipped * nearly / step)", "jnp.round(clipped * nearly / step)"),
        ("scale = 2 * clip_norm", "scale = clip_norm"),
        ("clip(x, most, ord=1)", "clip(x, most, ord=2)"),
        ("center + (up - down) * step", "center + (up + down) * step"),
    ),
    *of(
        "dpaudit/mechanisms/ldp_sgd",
        "mechanisms/test_ldp_sgd",
        (
            "0.5 - jnp.minimum(norm, clip_norm) / (2 * clip_norm)",
            "0.5 - jnp.minimum(norm, clip_norm) / (4 * clip_norm)",
        ),
        ("jax.nn.sigmoid(-jnp.asarray(epsilon", "jax.nn.sigmoid(-jnp.asarray(2 * epsilon"),
        ("return flips[0] ^ flips[1]", "return flips[0] | flips[1]"),
        ("gammaln((dimension + 1) / 2)", "gammaln((dimension + 2) / 2)"),
        ("step_size = radius * math.sqrt(n)", "step_size = radius * n"),
        ("(factor * wide(leaf)).astype", "(factor * leaf).astype"),
    ),
    *of(
        "dpaudit/mechanisms/privunit",
        "mechanisms/test_privunit",
        ("(math.exp(log_inside) - math.exp(log_outside))", "math.exp(log_inside)"),
        ("log_inside, log_outside = log_hit - log_mass", "log_inside, log_outside = log_hit + log_mass"),
        ("return _uniform_height(key, lambda t: t < cap.gamma", "return _uniform_height(key, lambda t: t < 1.0"),
    ),
    *of(
        "dpaudit/mechanisms/randomized_response",
        "mechanisms/test_randomized_response",
        ("(num_categories - 1) * math.exp(-claim", "num_categories * math.exp(-claim"),
        ("return 1 + upper", "return upper"),
        ("truth.astype(jnp.uint32) + _up", "truth + _up"),
        ("if others <= 1 else ~bernoulli(coin_key, keep)", "if others >= 0 else ~bernoulli(coin_key, keep)"),
        ("rare(others / (1 + others))", "others / (1 + others)"),
    ),
    *of(
        "dpaudit/mechanisms/sampling",
        "mechanisms/test_sampling",
        ("(low < low_bar))", "(low <= low_bar))"),
        ("(low.astype(dtype) + 0.5) * 2.0**-64", "0.5 * 2.0**-32"),
        ("radius = sqrt(2 * _exponential_of", "radius = sqrt(_exponential_of"),
        ("jnp.where(turn & 2, -sine, sine)", "sine"),
        ("(scaled - high) * 2.0**32", "(scaled - high) * 2.0**31"),
    ),
]
