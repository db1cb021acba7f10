"""Holds the numbers that the paper prints."""

LARGEST = 2.5  # estimate of all, Section 5
RATIOS = {"mean std": 2.6, "min max mean std": 3.0}  # estimate over that of one prediction, data set 1
ACCURACY = {1: 0.42, 2: 0.44, 5: 0.46, 10: 0.47, 50: 0.48}  # by samples, research question 2
PLAIN_ACCURACY = 0.48  # without dropout
STATED = {"deterministic": PLAIN_ACCURACY} | {f"mean of {count}": value for count, value in ACCURACY.items()}
UNIT = 0.01  # of rounding, research question 3
ROUNDED = (2.0, 1.3)  # estimates on data set 1, as it is and in multiples of the unit
LOSS = 0.01  # of accuracy by that, at most
