"""Writes tests/MISTAKES.md anew: `make mistakes`."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # before JAX is imported

from mistakes.page import PAGE, answers, written

if __name__ == "__main__":
    PAGE.write_text(written(answers()), encoding="utf-8")
