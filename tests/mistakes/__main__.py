"""The command of `make mistakes`, which writes tests/MISTAKES.md anew."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # JAX reads this variable when it is imported

from mistakes.page import PAGE, answers, written

if __name__ == "__main__":
    PAGE.write_text(written(answers()), encoding="utf-8")
