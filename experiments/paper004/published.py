"""Holds numbers of other work on the same task: the document itself prints none."""

RMSE_10M, PRIVATE_RMSE_10M = 0.7772, 0.8991  # MovieLens-10M: alternating least squares; private, at epsilon 1
RECALL_20M = 0.3631  # recall@20 without privacy, MovieLens-20M
