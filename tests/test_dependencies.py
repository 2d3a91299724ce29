"""What pyproject.toml asks for is used, and what is imported is asked for: nothing is carried along."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OURS = frozenset({"harness", "engine", "native", "suites", "tests", "noxfile"})
PACKAGES = ("harness", "engine", "native", "suites")

# Used without an import, and where that is to be seen.
BY_OTHER_MEANS = {
    "pytest-xdist": ("noxfile.py", '"-n", "2"'),
    "pytest-timeout": ("pyproject.toml", "timeout = 300"),
    "cmake": ("native/build.py", "cmake"),
    "ninja": ("native/build.py", "ninja"),
    "nvidia-cuda-nvrtc-cu12": ("native/build.py", "nvrtc"),
    "nvidia-cuda-nvcc-cu12": ("native/build.py", "ptxas"),
    "nvidia-cuda-runtime-cu12": ("native/build.py", "include"),
}
# Imported where it is there and done without where it is not; each import says so by itself.
OPTIONAL = frozenset({"triton", "flashinfer", "llama_cpp", "coverage"})
# What a package that we ask for brings along as a part of its own face.
PARTS = {"markupsafe": "jinja2", "cryptography": "securesystemslib", "_pytest": "pytest", "pluggy": "pytest"}


def distribution(requirement: str) -> str:
    return re.split(r"[\[<>=!~; ]", requirement, maxsplit=1)[0].lower()


def stated() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {distribution(requirement) for requirement in project["dependencies"]}


def imported(folders: tuple[str, ...]) -> dict[str, str]:
    """Top-level modules that our code imports, by statement or by name, with one file each."""
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return {name: str(path.relative_to(ROOT)) for path in files for name in names(ast.parse(path.read_text()))}


def names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "import_module":
            yield from (str(a.value).partition(".")[0] for a in node.args if isinstance(a, ast.Constant))


@cache
def providers() -> Mapping[str, list[str]]:
    """Module -> the distributions that install it."""
    return metadata.packages_distributions()


def distributions(module: str) -> set[str]:
    return {name.lower() for name in providers().get(module, [])}


def test_each_dependency_is_used() -> None:
    used = {name for module in imported(PACKAGES) for name in distributions(module)}
    assert stated() - used - set(BY_OTHER_MEANS) == set()


@pytest.mark.parametrize("name", BY_OTHER_MEANS)
def test_what_is_used_without_an_import_is_seen_there(name: str) -> None:
    path, words = BY_OTHER_MEANS[name]
    folder = (ROOT / path).parent
    files = [ROOT / path] if path in ("noxfile.py", "pyproject.toml") else sorted(folder.glob("*.py"))
    assert name in stated()
    assert any(words in file.read_text() for file in files)


def test_what_is_imported_is_asked_for() -> None:
    unknown = {
        module: file
        for module, file in imported(PACKAGES).items()
        if module not in (*sys.stdlib_module_names, *OURS, *OPTIONAL)
        and not distributions(PARTS.get(module, module)) & stated()
    }
    assert unknown == {}
