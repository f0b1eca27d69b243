"""Evaluation: means of scalars during training, tests over a data set, histories, and handlers that follow a value."""
