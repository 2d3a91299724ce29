"""Planted defects: the judge is tried before it judges.

A defect spoils one attribute of the code under test and names the cases that must then go red. It is planted by the
environment variable SM70_PLANT, which only this file reads, in the pytest process and in every worker it starts.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

PLANT_VARIABLE = "SM70_PLANT"


@dataclass(frozen=True, slots=True)
class Defect:
    """One way to be wrong.

    ``owner`` is the dotted name of the module (or ``module:Class``) whose ``attribute`` is replaced by
    ``spoil(original)``. ``must_go_red`` are node ids relative to the repository root; a bare function id stands for all
    its parameters. Every case they select must fail while the defect is planted, and pass without it.
    """

    name: str
    description: str
    scope: str
    owner: str
    attribute: str
    spoil: Callable[[Any], Any]
    must_go_red: tuple[str, ...]

    def plant(self) -> None:
        """Replace the attribute in this process, for the rest of its life."""
        module_name, _, class_name = self.owner.partition(":")
        owner: Any = importlib.import_module(module_name)
        if class_name:
            owner = getattr(owner, class_name)
        setattr(owner, self.attribute, self.spoil(getattr(owner, self.attribute)))


def registry() -> Mapping[str, Defect]:
    """Every defect of every module beside this one (each has a tuple ``DEFECTS``), by name."""
    found: dict[str, Defect] = {}
    for module_info in pkgutil.iter_modules(__path__):
        defects: tuple[Defect, ...] = importlib.import_module(f"{__name__}.{module_info.name}").DEFECTS
        for defect in defects:
            if defect.name in found:
                raise ValueError(f"two planted defects are called {defect.name!r}")
            found[defect.name] = defect
    return found


def planted() -> Defect | None:
    """The defect that SM70_PLANT asks for, or None. An unknown name is an error."""
    name = os.environ.get(PLANT_VARIABLE, "")
    if not name:
        return None
    known = registry()
    if name not in known:
        raise ValueError(f"{PLANT_VARIABLE}={name}: no such defect; known: {', '.join(sorted(known))}")
    return known[name]
