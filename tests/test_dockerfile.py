"""Packages of the Docker image and actions of CI: fixed versions with checksums, which satisfy the requirements."""

import pathlib
import re
import tomllib
from importlib.metadata import distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = pathlib.Path(__file__).resolve().parent.parent
ENTRY = re.compile(r"^([a-z0-9-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", re.MULTILINE)


def test_requirements_of_the_image_are_locked_by_checksums():
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    entries = ENTRY.findall(lock)
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
    assert "--require-hashes -r requirements.lock" in installs[0] and "--no-deps --no-build-isolation" in installs[2]
    assert "--no-deps" in installs[1] and "--require-hashes -r requirements-cuda.lock" in installs[1]
    assert re.findall(r"^FROM (\S+)", made, re.MULTILINE) == ["${PYTHON}"] * 2


def test_cuda_lock_adds_the_plugin_of_its_jax():
    cpu = {name: version for name, version, _ in ENTRY.findall((ROOT / "requirements.lock").read_text("utf-8"))}
    lock = (ROOT / "requirements-cuda.lock").read_text(encoding="utf-8")
    cuda = {name: (version, hashes) for name, version, hashes in ENTRY.findall(lock)}
    assert len(cuda) == lock.count("==") and "://" not in lock and not cpu.keys() & cuda.keys()
    assert cuda["jax-cuda12-plugin"][0] == cuda["jax-cuda12-pjrt"][0] == cpu["jax"]
    assert all(hashes.count("--hash") == 2 for _, hashes in cuda.values()), "x86-64 and ARM"
    wanted = [
        Requirement(line) for line in distribution("jax").requires or () if "cuda12" in line and "rocm" not in line
    ]
    assert {r.name for r in wanted if r.marker and r.marker.evaluate({"extra": "cuda12"})} <= cuda.keys() | cpu.keys()


def test_ci_fixes_its_actions_and_may_only_read():
    workflows = [path.read_text(encoding="utf-8") for path in (ROOT / ".github" / "workflows").glob("*.yml")]
    assert workflows
    for text in workflows:
        assert "\npermissions:\n  contents: read\n" in text and text.count("permissions:") == 1
        used = re.findall(r"uses: (.*)", text)
        assert used and all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", each) for each in used), used
