"""Holds what DP-Sniper's authors published for each mechanism, from the reference results of their evaluation.

Source: repository eth-sri/dp-sniper, folder eval_sp2021/reference-results: dd_search_reg_data.log (logistic
regression), dd_search_mlp_data.log (neural network) and statdp_1_data.log (their first run of StatDP-Fixed); entries
``eps_lcb``, ``p1``, ``p2``, ``time_dd_search``, ``time_final_estimate_eps`` and ``statdp_result``. From these files
eval_sp2021/plots/create_plots.py draws the plot of powers. Bounds are at confidence 0.9 from 200 million final samples
of each world; attacks are kept to events of probability 0.01 or more (dpsniper/search/ddconfig.py).
"""

from typing import NamedTuple


class Published(NamedTuple):
    """One line of the table."""

    linear: float  # linear, network: certified epsilon of DP-Sniper with logistic regression and with a neural network
    network: float
    seconds: tuple[float, float]  # wall time of both, search and final estimate, on the authors' machine
    rates: tuple[float, float]  # the two probabilities behind the larger of the two bounds
    statdp: float | None  # certified epsilon of StatDP-Fixed, first run; None where it failed


PUBLISHED = {
    "laplace": Published(0.09680, 0.09763, (21, 217), (0.01105087, 0.01000032), 0.09981),
    "truncated_geometric": Published(0.11556, 0.11554, (19, 162), (0.01124836, 0.00999825), 0.11588),
    "noisy_hist1": Published(0.09779, 0.09770, (38, 211), (0.01112275, 0.01006384), 0.08283),
    "noisy_hist2": Published(4.60202, 4.60147, (41, 254), (0.99886739, 0.01000855), 9.71693),
    "report_noisy_max1": Published(0.09225, 0.09250, (62, 492), (0.01100975, 0.01001437), 0.09195),
    "report_noisy_max2": Published(0.09750, 0.09792, (58, 423), (0.01106902, 0.01001390), 0.09958),
    "report_noisy_max3": Published(0.24782, 0.24881, (62, 437), (0.01280580, 0.00996329), 0.19914),
    "report_noisy_max4": Published(0.34634, 0.35344, (63, 451), (0.01418709, 0.00994190), 0.19602),
    "svt1": Published(0.08580, 0.08578, (126, 966), (0.01087349, 0.00995684), 0.02975),
    "svt2": Published(0.08593, 0.08525, (160, 825), (0.01091681, 0.00999520), 0.03164),
    "svt3": Published(0.17157, 0.18217, (160, 880), (0.01202957, 0.01000403), 0.02306),
    "svt4": Published(0.16868, 0.16957, (130, 815), (0.01188408, 0.01000829), 0.17086),
    "svt5": Published(1.76119, 1.76099, (59, 527), (0.05828795, 0.01), 14.31431),
    "svt6": Published(0.27204, 0.26983, (96, 584), (0.01314740, 0.00999433), 0.32204),
    "rappor": Published(0.29298, 0.30080, (145, 529), (0.01339790, 0.00989603), 0.24158),
    "one_time_rappor": Published(0.59778, 0.59990, (89, 408), (0.01816655, 0.00995095), 0.47064),
    "laplace_parallel": Published(0.03495, 0.02987, (104, 341), (0.01040275, 0.01002244), 0.01259),
    "svt34_parallel": Published(0.26104, 0.26162, (364, 1117), (0.01304169, 0.01001778), 0.13709),
    "prefix_sum": Published(0.50401, 0.57743, (97, 984), (0.01788123, 0.01001716), 0.35161),
    "numerical_svt": Published(0.03432, 0.03450, (152, 686), (0.01038242, 0.01000735), None),
}
