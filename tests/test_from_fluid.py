"""The pages docs/from-fluid*.md: their programs run, and they list every case in which fluid differs.

A case is a golden case: a recorded result of PaddlePaddle Fluid in tests/goldens.
"""

import pathlib
import re
import shutil

from golden_cases import IMPOSSIBLE, cases
from paddle_programs import FOLDER

DOCS = pathlib.Path(__file__).resolve().parent.parent / "docs"
TEXT = "\n".join(path.read_text() for path in [DOCS / "from-fluid.md", *sorted(DOCS.glob("from-fluid-*.md"))])


def test_its_programs_run(in_tmp, capsys):
    shutil.copytree(FOLDER / "lenet", in_tmp / "lenet")
    for code in re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL):
        exec(compile(code, "from-fluid.md", "exec"), {"__name__": "from_fluid"})
    error = float(capsys.readouterr().out.split()[0])
    assert error < 6.5, "half of what always saying 0 costs"


def test_page_lists_every_case_with_other_numbers():
    wanted = {case.id for case in cases() if "defect" in case.spec or case.spec.get("not_derivative")}
    assert set(re.findall(r"^\| `(\w+/\w+)`", TEXT, flags=re.MULTILINE)) == wanted


def test_page_explains_each_case_that_cannot_run():
    assert IMPOSSIBLE and all(f"`{case}`: {reason}" in " ".join(TEXT.split()) for case, reason in IMPOSSIBLE.items())
