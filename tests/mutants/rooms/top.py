"""Faults of the kernels and of what all rooms use: validation, devices, memory, fingerprints, interruption."""

from tests.mutants.mutant import of

MUTANTS = [
    *of(
        "kernels/philox",
        "kernels/test_philox",
        ("rounds: int = 10", "rounds: int = 9"),
        ("1 << 31, (1 << 31) + 1", "1 << 31, 1 << 31"),
        ("k0, k1 = k0 + _KEY_STEPS[0], k1 + _KEY_STEPS[1]", "k0, k1 = k0 + _KEY_STEPS[1], k1 + _KEY_STEPS[0]"),
        ("jnp.where(seed < 0, -1, 0)", "0"),
    ),
    *of(
        "kernels/randomized_trial",
        "kernels/test_randomized_trial",
        ("jnp.where((own >= 0) ^ turned, v, -v)", "jnp.where(own >= 0, v, -v)"),
        ("own = jnp.where(world == 0, v[0], v[1])", "own = v[0]"),
        ("drawn = [block(first + i + start + (shift > 0))", "drawn = [block(first + i + start)"),
        ("jnp.where(chunk == 0, 0, out[m]) + added", "added"),
        ("zip(high, low, angle, strict=True)", "zip(high, angle, angle, strict=True)"),
        ("divmod(m * half, WORDS) for m in range(3)", "divmod(m * half, WORDS) for m in (0, 0, 2)"),
        ("((0, 0), (0, 2 * half - d))", "((0, 0), (2 * half - d, 0))"),
    ),
    *of(
        "dpaudit/_validate",
        "test_validate",
        ("or not _known(value) > 0", "or not _known(value) > -1"),
        ("not 0 < _known(value) < 1", "not 0 <= _known(value) < 1"),
        ("if not whole or _known(value) < minimum", "if _known(value) < minimum"),
        ("and value.ndim == 0 and value.dtype.kind in", "and value.dtype.kind in"),
        ("if isinstance(value, (bool, np.bool_)):", "if isinstance(value, np.bool_):"),
        ("isinstance(value, (np.generic, np.ndarray, jax.Array)) else", "isinstance(value, np.ndarray) else"),
        ("return value if value.dtype == kind else value.astype(kind)", "return value"),
    ),
    *of(
        "dpaudit/_engine/fingerprint",
        "_engine/test_fingerprint",
        ('sha.update(len(part).to_bytes(8, "little") + part)', "sha.update(part)"),
        ('return re.sub(r"0x[0-9a-f]+", "", words)', "return words"),
        ("with sharding.CORES(1):", "with sharding.CORES(None):"),
    ),
    *of(
        "dpaudit/_engine/memory",
        "_engine/test_memory",
        ("size //= 2  #", "size -= 1  #"),
        ("least = min(map(number, known), default=math.inf)", "least = max(map(number, known), default=math.inf)"),
    ),
    *of(
        "dpaudit/cli/command",
        "integration/test_cli integration/test_cli_audit",
        ('"violation": 1, "fault": 1', '"violation": 0, "fault": 1'),
        ('"underpowered": 3}', '"underpowered": 0}'),
        ("hosts.leave(2)\n        status = 2", "hosts.leave(2)\n        status = 0"),
    ),
    *of(
        "dpaudit/cli/command",
        "integration/test_cli_resume::test_a_checkpoint_that_is_there_is_kept_unless_it_is_resumed",
        ("if kept.exists() and not resume", "if kept.exists() and resume"),
    ),
    *of(
        "dpaudit/cli/command",
        "integration/test_compilation_cache",
        ('if "JAX_COMPILATION_CACHE_DIR" not in os.environ', "if True"),
    ),
    *of(
        "dpaudit/_engine/hosts",
        "integration/test_hosts",
        ("if text is not None and not text.isdecimal()", "if text is None"),
    ),
    *of(
        "dpaudit/_engine/hosts",
        "integration/test_preemption",
        ("128 + signal.SIGINT, 128 + signal.SIGTERM", "128 + signal.SIGTERM, 128 + signal.SIGINT"),
    ),
]
