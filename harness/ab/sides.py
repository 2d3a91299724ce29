"""From two names to two sides that can be run: source, tree, build, and how a worker of it is started."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.ab.builds import Build, build
from harness.ab.repeat import Launch, RepeatError, run_worker
from harness.ab.trees import Source, check_out, repository, resolve
from harness.environment import look
from harness.errors import UsageError

WORKER = ("-m", "suites.latency.worker")
LIBRARY_VARIABLE = "SM70_NATIVE_LIBRARY"
_LIST_S = 60.0


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

    def groups(self) -> tuple[tuple[str, ...], ...]:
        """Arms that share a process, as the side's worker lists them; an old worker takes one at a time."""
        try:
            listed = json.loads(run_worker(self.launch(_LIST_S), ["--list"], f"the worker of {self.name}"))
            return tuple(tuple(map(str, group)) for group in listed["groups"])
        except (RepeatError, ValueError, KeyError, TypeError):
            return ()

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


def built(root: Path, source: Source, say: Callable[[str], None]) -> Build:
    """Check out and build one source."""
    with repository(root) as repo:
        tree = check_out(repo, source, root)
    return build(tree, root, source.label, say)


def common_groups(base: Side, head: Side, wanted: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """The arms to run, those that share a process on both sides together. ``UsageError`` for an arm that one lacks."""
    groups = {side.name: side.groups() for side in (base, head)}
    listed = [{arm for group in found for arm in group} for found in groups.values()]
    if not all(listed):
        return tuple((arm,) for arm in wanted)
    for side, arms in zip((base, head), listed, strict=True):
        unknown = [arm for arm in wanted if arm not in arms]
        if unknown:
            known = ", ".join(sorted(arms))
            raise UsageError(f"{side.source.label} has no arm {', '.join(unknown)}", f"give --arm with one of: {known}")
    of_both = [
        tuple(arm for arm in one if arm in other and arm in wanted)
        for one in groups[base.name]
        for other in groups[head.name]
    ]
    return tuple(group for group in of_both if group)
