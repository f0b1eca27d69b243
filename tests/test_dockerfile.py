"""The Dockerfile installs fixed versions with checksums, and they satisfy the requirements of the project."""

import pathlib
import re
import tomllib

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = pathlib.Path(__file__).resolve().parent.parent


def test_what_the_image_holds_is_locked_by_checksums():
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    entries = re.findall(r"^([a-z0-9-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", lock, re.MULTILINE)
    assert len(entries) == lock.count("==") and "://" not in lock
    versions = {name: version for name, version, _ in entries}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    wanted = [
        *project["project"]["dependencies"],
        *extras["serve"],
        *extras["export"],
        *project["build-system"]["requires"],
    ]
    for requirement in map(Requirement, wanted):
        if requirement.name != "fluid-jax":
            assert versions[canonicalize_name(requirement.name)] in requirement.specifier, requirement
    made = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    installs = re.findall(r"pip install (.*)", made)
    assert "--require-hashes -r requirements.lock" in installs[0] and "--no-deps --no-build-isolation" in installs[1]
    assert re.findall(r"^FROM (\S+)", made, re.MULTILINE) == ["${PYTHON}"] * 2
