"""Holds the numbers that the paper prints."""

ACCURACY: dict[str, dict[tuple[str, float | None], float]] = {  # at the end, percent; some LDP's are differences
    "MNIST": {("non-private", None): 97.4, ("MPC only", None): 97.1, ("SPGC", 0.5): 88.6, ("LDP", 0.5): 88.2},
    "Cancer": {
        ("non-private", None): 98.3,
        ("MPC only", None): 98.3,
        ("SPGC", 0.5): 60.3,
        ("SPGC", 2.0): 63.1,
        ("SPGC", 8.0): 92.1,
        ("LDP", 8.0): 86.6,
    },
    "Diabetes": {
        ("non-private", None): 67.2,
        ("MPC only", None): 67.2,
        ("SPGC", 0.5): 35.1,
        ("LDP", 0.5): 37.9,
        ("SPGC", 8.0): 64.2,
        ("LDP", 8.0): 61.9,
    },
}
COSTED = (0.01, 0.1, 0.5, 2.0, 8.0)  # epsilons of Table 1
HOURS = {  # of a training, at each of these
    "MNIST": (117.45, 116.13, 115.7, 115.1, 114.5),
    "Cancer": (11.03, 10.61, 10.76, 10.63, 10.63),
    "Diabetes": (1.26, 1.27, 1.23, 1.22, 1.21),
}
GIGABYTES = {"MNIST": (5_094.6, 289.2), "Cancer": (699.8, 39.5), "Diabetes": (77.5, 4.4)}  # epsilon 2; no noise
