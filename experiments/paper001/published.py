"""Holds the numbers that the paper prints."""

from typing import NamedTuple

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
CANCER_PRINTED = {"abstract": 92.2, "section": 92.1, "end": 92.7}  # of SPGC, epsilon 8
COSTED = (0.01, 0.1, 0.5, 2.0, 8.0)  # epsilons of Table 1
HOURS = {  # of a training, at each of these
    "MNIST": (117.45, 116.13, 115.7, 115.1, 114.5),
    "Cancer": (11.03, 10.61, 10.76, 10.63, 10.63),
    "Diabetes": (1.26, 1.27, 1.23, 1.22, 1.21),
}
GIGABYTES = {
    "MNIST": (5_094.6, 289.2),
    "Cancer": (699.8, 39.5),
    "Diabetes": (77.5, 4.4),
}  # epsilon 2; no noise
NOISY_GIGABYTES = {"MNIST": (5_172.0, 5_018.8), "Cancer": (736.9, 698.8), "Diabetes": (81.6, 77.5)}  # COSTED's ends


class Hours(NamedTuple):
    """A line of Table 1."""

    computing: float
    communicating: float
    training: float


BY_EPSILON: dict[str, tuple[Hours, ...]] = {  # SPGC, at each of COSTED
    "MNIST": (
        Hours(1.69, 115.77, 117.45),
        Hours(1.66, 114.47, 116.13),
        Hours(1.67, 114.05, 115.7),
        Hours(1.67, 113.45, 115.1),
        Hours(1.67, 112.78, 114.5),
    ),
    "Cancer": (
        Hours(0.11, 10.93, 11.03),
        Hours(0.11, 10.50, 10.61),
        Hours(0.11, 10.65, 10.76),
        Hours(0.11, 10.52, 10.63),
        Hours(0.11, 10.53, 10.63),
    ),
    "Diabetes": (
        Hours(0.07, 1.19, 1.26),
        Hours(0.07, 1.20, 1.27),
        Hours(0.07, 1.16, 1.23),
        Hours(0.07, 1.15, 1.22),
        Hours(0.07, 1.14, 1.21),
    ),
}
LDP_BY_EPSILON: dict[str, tuple[Hours, ...]] = {
    "MNIST": (
        Hours(1.53, 0.04, 1.57),
        Hours(1.53, 0.04, 1.57),
        Hours(1.55, 0.04, 1.59),
        Hours(1.55, 0.04, 1.59),
        Hours(1.55, 0.04, 1.59),
    ),
    "Cancer": (
        Hours(0.11, 0.01, 0.12),
        Hours(0.10, 0.01, 0.11),
        Hours(0.10, 0.01, 0.11),
        Hours(0.09, 0.00, 0.10),
        Hours(0.09, 0.00, 0.10),
    ),
    "Diabetes": (
        Hours(0.07, 0.00, 0.07),
        Hours(0.06, 0.00, 0.06),
        Hours(0.06, 0.00, 0.06),
        Hours(0.06, 0.00, 0.06),
        Hours(0.06, 0.00, 0.06),
    ),
}
MPC_ONLY = {"MNIST": Hours(1.66, 70.16, 71.82), "Cancer": Hours(0.11, 6.40, 6.51), "Diabetes": Hours(0.07, 0.73, 0.80)}
NON_PRIVATE = {
    "MNIST": Hours(1.68, 0.05, 1.73),
    "Cancer": Hours(0.10, 0.01, 0.11),
    "Diabetes": Hours(0.06, 0.00, 0.06),
}
GIGABYTES_BY_EPSILON = {
    "MNIST": (5_172.0, 5_164.6, 5_094.6, 5_094.6, 5_018.8),
    "Cancer": (736.9, 707.8, 711.7, 699.8, 698.8),
    "Diabetes": (81.6, 78.4, 78.9, 77.5, 77.5),
}
TIMES_LDP = {"MNIST": 72, "Cancer": 98, "Diabetes": 21}  # SPGC's communication over LDP's, says the text
