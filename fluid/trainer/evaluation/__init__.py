"""Evaluation: means during training, tests over a data set, histories, and handlers that monitor one value."""
