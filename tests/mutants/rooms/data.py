"""Faults of reading data."""

from tests.mutants.mutant import of

MUTANTS = [
    *of(
        "dpaudit/data/formats",
        "data/test_formats",
        (".reshape(records, 3, 32, 32).transpose(0, 2, 3, 1)", ".reshape(records, 32, 32, 3)"),
        ("labels % 10", "labels"),
        ("LARGEST = 2**30", "LARGEST = 2**10"),
        ("0, num_classes - 1)", "0, num_classes)"),
    ),
    *of(
        "dpaudit/data/ratings",
        "data/test_ratings",
        ("pairs = users.astype(np.int64) << 32 | items", "pairs = users.astype(np.int64) << 1 | items"),
        ("np.random.default_rng(seed).permutation(count)", "np.arange(count)"),
    ),
    *of(
        "dpaudit/data/movielens",
        "data/test_movielens",
        ("(values < step) | (values > 5)", "(values > 5)"),
        ('begin = content.find(b"\\n") + 1 if header else 0', "begin = 0"),
    ),
    *of(
        "dpaudit/data/sources",
        "data/test_sources",
        ("np.float32(255 if inputs.dtype == np.uint8 else 1)", "np.float32(256 if inputs.dtype == np.uint8 else 1)"),
    ),
    *of(
        "dpaudit/data/files",
        "data/test_sources",
        ("[rows, :, :, None] / 16", "[rows, :, :, None] / 15"),
        ('train if split == "train" else test)', 'test if split == "train" else test)'),
    ),
    *of(
        "dpaudit/data/jester",
        "data/test_jester",
        ("rated.sum(axis=1) != table[:, 0]", "rated.sum(axis=1) > table[:, 0]"),
        ("rated & ~(", "rated & (values < LOW) & ~("),
    ),
]
