"""From two names to two sides that can be run: source, tree, build, and how a worker of it is started."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.ab.builds import Build, build
from harness.ab.errors import RepeatError
from harness.ab.prune import used
from harness.ab.repeat import Launch, run_worker
from harness.ab.session import TURNS, WHOLE
from harness.ab.trees import Source, check_out, repository, resolve
from harness.errors import UsageError
from harness.machine.environment import look

WORKER = ("-m", "suites.latency.worker")
LIBRARY_VARIABLE = "SM70_NATIVE_LIBRARY"
_LIST_S = 60.0
Groups = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Listed:
    """A worker's answer to ``--list``: arms that share a process (none: each by itself), and those that take turns."""

    groups: tuple[tuple[str, ...], ...]
    turns: tuple[str, ...]


@dataclass(frozen=True)
class Side:
    """One side, built."""

    name: str
    source: Source
    build: Build
    worker: tuple[str, ...] = WORKER
    cores: tuple[int, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    descriptors: tuple[int, ...] = ()

    def launch(self, timeout_s: float) -> Launch:
        """How a worker of this side is started."""
        argv = (str(self.build.python), *self.worker)
        variables = {**os.environ, **self.environment}
        return Launch(self.name, self.build.tree, argv, variables, self.cores, self.descriptors, timeout_s)

    def listed(self) -> Listed:
        """What the side's worker says of itself; an old worker takes one arm at a time and no turns."""
        try:
            said = json.loads(run_worker(self.launch(_LIST_S), ["--list"], f"the worker of {self.name}"))
            groups = tuple(tuple(map(str, group)) for group in said["groups"])
            return Listed(groups, tuple(map(str, said.get("turns", ()))))
        except (RepeatError, ValueError, KeyError, TypeError, AttributeError):
            return Listed((), ())

    def facts(self) -> dict[str, str]:
        """The environment of the evidence: machine, and this side's source and library."""
        facts = look(self.build.tree)
        facts["ab.environment"] = self.build.environment
        if self.source.dirty_digest:
            facts |= {
                "git.commit": self.source.parent,
                "git.dirty": "yes",
                "git.dirty_digest": self.source.dirty_digest,
            }
        return facts


def refuse_shared_library(environ: Mapping[str, str]) -> None:
    """A library named by the environment would be loaded by both sides."""
    if environ.get(LIBRARY_VARIABLE):
        raise UsageError(
            f"{LIBRARY_VARIABLE} is set: both sides would load {environ[LIBRARY_VARIABLE]}", f"unset {LIBRARY_VARIABLE}"
        )


def sources(root: Path, names: Sequence[str]) -> list[Source]:
    """What the names on the command line mean."""
    with repository(root) as repo:
        return [resolve(repo, name) for name in names]


def built(root: Path, source: Source, say: Callable[[str], None], libraries: Mapping[Path, str]) -> Build:
    """Check out and build one source; ``libraries`` as in `build`."""
    with repository(root) as repo:
        tree = check_out(repo, source, root)
    used(tree)
    made = build(tree, root, source.label, say, libraries=libraries)
    for folder in made.folders:
        used(folder)
    return made


def common_groups(listed: Mapping[str, Listed], labels: Mapping[str, str], wanted: Sequence[str]) -> Groups:
    """The arms to run, those that share a process on both sides together. ``UsageError`` for an arm that one lacks.

    ``labels`` name the sides for a person.
    """
    known = {name: {arm for group in said.groups for arm in group} for name, said in listed.items()}
    if not all(known.values()):
        return tuple((arm,) for arm in wanted)
    for name, arms in known.items():
        unknown = [arm for arm in wanted if arm not in arms]
        if unknown:
            hint = f"give --arm with one of: {', '.join(sorted(arms))}"
            raise UsageError(f"{labels[name]} has no arm {', '.join(unknown)}", hint)
    base, head = listed.values()
    of_both = [
        tuple(arm for arm in one if arm in other and arm in wanted) for one in base.groups for other in head.groups
    ]
    return tuple(group for group in of_both if group)


def order_of(listed: Mapping[str, Listed], wanted: Sequence[str], whole: bool) -> tuple[str, str]:
    """How the sides are interleaved, and why if it has to be whole processes."""
    if whole:
        return WHOLE, "as --whole asks"
    unable = [f"{arm} of {name}" for name, said in listed.items() for arm in wanted if arm not in said.turns]
    return (WHOLE, f"{', '.join(unable)} takes no turns") if unable else (TURNS, "")
