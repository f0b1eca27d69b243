"""Recurrent layers, which run over the steps of sequences."""
