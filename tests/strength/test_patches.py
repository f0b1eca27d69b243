"""Faults of this folder: each patch applies to the sources, and names a test of the suite."""

import pathlib
import re
import shutil
import subprocess

import pytest

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
PATCHES = sorted(HERE.glob("*.patch"))


@pytest.mark.skipif(shutil.which("git") is None, reason="git applies the patches")
@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_a_patch_applies_and_names_its_test(patch):
    done = subprocess.run(["git", "apply", "--check", patch], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"the code changed; write the fault for the new code: {done.stderr}"
    text = patch.read_text(encoding="utf-8")
    file, test = re.search(r"^Found by: (\S+\.py)::(\w+)", text, re.MULTILINE).groups()
    assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8")


def test_sixty_faults_are_there():
    assert len(PATCHES) >= 60
