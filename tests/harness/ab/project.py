"""A git repository with a worker that answers at once: what it says lies in ``worker.json`` of each commit."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.harness.conftest import harness_environment

WORKER = '''\
"""Answers like a worker, from worker.json beside the repository's root; its times are made up."""

import json
import os
import random
import signal
import sys
from pathlib import Path

about = json.loads(Path("worker.json").read_text())
pipes = None
if "--turns" in sys.argv:
    pipes = [int(part) for part in sys.argv.pop().split(",")]
    sys.argv.pop()
arms = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
if "--list" in sys.argv:
    if about.get("old"):
        sys.exit(2)
    turns = {} if about.get("no_turns") else {"turns": ["fast", "slow"]}
    print(json.dumps({"protocol": 3, "groups": about.get("groups", [["fast", "slow"]]), **turns}))
    sys.exit(0)
if "--gap" in sys.argv:
    question = json.loads(arms[1])
    print(json.dumps({str(token): 10.0 - 0.25 * place for place, token in enumerate(question["candidates"])}))
    sys.exit(0)
if pipes:
    os.read(pipes[0], 1)
calls = Path(about["calls"])
with calls.open("a") as stream:
    stream.write(about["name"] + "\\n")
count = len(calls.read_text().splitlines())
if about.get("crash_after") is not None and count > about["crash_after"]:
    sys.stderr.write(about.get("says", "it broke") + "\\n")
    os.kill(os.getpid(), signal.SIGKILL) if about.get("killed") else sys.exit(3)
noise = random.Random(f"{count}{about['name']}")


def answer(arm):
    emitted = [1] * 12
    tokens = about.get("tokens", list(range(100, 113)))
    at = 10.0
    stamps = [at]
    for _ in emitted:
        at += about["round"] * (1 + about.get("noise", 0.002) * noise.random())
        stamps.append(at)
    if about.get("backwards"):
        stamps[5] = stamps[3]
    run = {"prompt": "p", "token_ids": tokens, "finish": about.get("finish", "stop"), "arrival_ts": 9.9,
           "token_ts": stamps, "emitted": emitted}
    turns = {"turns": {"steps": 2, "waits": [[9.0, 9.8]], "alone": 13}} if pipes and not about.get("no_turns") else {}
    return {"arm": arm, "runs": [run], "peak_rss_bytes": 1, "unfit": about.get("unfit", []), **turns}


answers = [answer(arm) for arm in arms]
if pipes:
    try:
        os.write(pipes[1], b"t")
    except BrokenPipeError:
        pass
print(json.dumps(answers[0] if about.get("old") else answers))
'''


class Project:
    """The repository; ``commit`` writes what its worker says and gives the commit's id."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.calls = root.parent / "calls.txt"
        package = root / "suites" / "latency"
        package.mkdir(parents=True)
        (root / "suites" / "__init__.py").touch()
        (package / "__init__.py").touch()
        (package / "worker.py").write_text(WORKER)
        (root / ".gitignore").write_text("artifacts/\n__pycache__/\n")
        self.git("init", "-q", "-b", "main")
        self.git("config", "user.email", "test@example.org")
        self.git("config", "user.name", "test")

    def git(self, *arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(self.root), "-c", "protocol.file.allow=always", *arguments],
            env=harness_environment(),
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    def say(self, name: str, **about: Any) -> None:
        """What the worker of the work tree says from now on."""
        text = {"name": name, "calls": str(self.calls), "round": 0.010, **about}
        (self.root / "worker.json").write_text(json.dumps(text))

    def commit(self, name: str, **about: Any) -> str:
        self.say(name, **about)
        self.git("add", "-A")
        self.git("commit", "-q", "-m", name)
        return self.git("rev-parse", "HEAD")

    def order(self) -> str:
        """First letters of the workers that ran, in order."""
        return "".join(line[0] for line in self.calls.read_text().split())
