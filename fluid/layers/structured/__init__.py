"""Structured prediction: CRF, CTC, chunks, beam search, edit distance."""
