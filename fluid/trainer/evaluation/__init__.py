"""Evaluation: measurements during training and in tests."""
