"""Telemetry: rates from counters, a sampler that ends with its parent, and doubts with their figures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import pytest

from harness.errors import EvidenceError
from harness.machine.cpu_counters import CpuReader, CpuSample
from harness.machine.gpu_counters import GpuReader, GpuSample, throttle_names
from harness.machine.telemetry import Sample, between, read_samples, sample_until_closed, sampling
from harness.machine.witness import witness
from tests.harness.conftest import REPOSITORY, harness_environment


class Tree:
    """A ``/proc`` and a ``/sys`` with counters that a test moves."""

    def __init__(self, root: Path) -> None:
        self.proc, self.sysfs = root / "proc", root / "sys"
        self.now = 100.0
        self.write("loadavg", "1.50 1.00 0.50 2/100 4242")
        self.write("pressure/cpu", "some avg10=12.50 avg60=0.00 avg300=0.00 total=1\n")
        self.cpu(user=0, idle=0, steal=0, switches=0)
        self.process(7, ticks=0, switched_out=0)

    def write(self, name: str, text: str) -> None:
        path = self.proc / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def cpu(self, *, user: int, idle: int, steal: int, switches: int) -> None:
        self.write("stat", f"cpu  {user} 0 0 {idle} 0 0 0 {steal} 0 0\ncpu0 1 2 3\nctxt {switches}\n")

    def process(self, pid: int, *, ticks: int, switched_out: int, children: str = "") -> None:
        head = f"{pid} (a (strange) name) S 1 1 1 0 -1 0 0 0 0 0"
        self.write(f"{pid}/stat", f"{head} {ticks} 0 0 0 20 0 1 0 0\n")
        self.write(f"{pid}/status", f"Name:\tx\nnonvoluntary_ctxt_switches:\t{switched_out}\n")
        self.write(f"{pid}/task/{pid}/children", children)

    def reader(self) -> CpuReader:
        return CpuReader(7, self.proc, self.sysfs, clock=lambda: self.now, hertz=100)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_rates_are_since_the_look_before(tree: Tree) -> None:
    """Two seconds: 250 of our ticks and 100 of others on 100 Hz, 20 stolen."""
    reader = tree.reader()
    tree.now += 2.0
    tree.cpu(user=350, idle=30, steal=20, switches=5000)
    tree.process(7, ticks=250, switched_out=10)
    sample = reader.read()
    assert (sample.own, sample.others, sample.steal) == (1.25, 0.5, 0.1)
    assert (sample.context_switches, sample.switched_out) == (2500.0, 5.0)
    assert (sample.load1, sample.pressure) == (1.5, 0.125)


def test_descendants_are_our_own(tree: Tree) -> None:
    """A grandchild's time is not a neighbour's."""
    tree.process(7, ticks=0, switched_out=0, children="8")
    tree.process(8, ticks=0, switched_out=0, children="9")
    tree.process(9, ticks=0, switched_out=0)
    reader = tree.reader()
    tree.now += 1.0
    tree.cpu(user=100, idle=100, steal=0, switches=1)
    tree.process(9, ticks=90, switched_out=0)
    sample = reader.read()
    assert (sample.own, sample.others) == (0.9, 0.1)


def test_what_the_kernel_does_not_tell_is_none(tmp_path: Path) -> None:
    reader = CpuReader(7, tmp_path / "none", tmp_path / "none", hertz=100)
    assert reader.read() == CpuSample(None, None, None, None, None, None, 0.0, None)


def test_frequency_is_the_mean_over_processors(tree: Tree) -> None:
    for index, khz in enumerate((2_000_000, 3_000_000)):
        folder = tree.sysfs / f"devices/system/cpu/cpu{index}/cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_cur_freq").write_text(f"{khz}\n")
    assert tree.reader().read().mhz == 2500.0


def test_frequency_from_cpuinfo_where_there_is_no_cpufreq(tree: Tree) -> None:
    tree.write("cpuinfo", "cpu MHz\t\t: 2000.0\nflags : x\ncpu MHz\t\t: 2400.0\n")
    assert tree.reader().read().mhz == 2200.0


def test_this_machine_has_counters(tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("counters come from /proc")
    reader = CpuReader(os.getpid())
    end = time.monotonic() + 0.2
    while time.monotonic() < end:
        sum(range(1000))
    sample = reader.read()
    assert sample.own is not None
    assert sample.own > 0


@pytest.mark.parametrize(
    ("bits", "names"),
    [
        (0x0, ()),
        (0x1, ()),  # idle
        (0x2, ()),  # clocks that a person set
        (0x4, ("power cap",)),
        (0x44, ("power cap", "hardware thermal slowdown")),
    ],
)
def test_throttle_reasons(bits: int, names: tuple[str, ...]) -> None:
    assert throttle_names(bits) == names


def test_no_card_asks_no_library() -> None:
    with GpuReader([]) as reader:
        assert reader.read() == ()


# ---- the sampler ----------------------------------------------------------------------------------------------------


def test_lines_come_back_as_samples(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.jsonl"
    with sampling(path, watch=os.getpid(), interval_s=0.05):
        wait_for_lines(path, 3)
    samples = read_samples(path)
    assert len(samples) >= 3
    assert all(one.at < other.at for one, other in pairwise(samples))


def wait_for_lines(path: Path, count: int) -> None:
    while not path.exists() or path.read_text().count("\n") < count:
        time.sleep(0.02)


def test_a_cut_last_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.jsonl"
    with sampling(path, watch=os.getpid(), interval_s=0.05):
        wait_for_lines(path, 2)
    whole = read_samples(path)
    path.write_text(path.read_text()[:-20])
    assert read_samples(path) == whole[:-1]


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        "{}",
        '{"at": 1e400}',
        '{"at": "x"}',
        '{"others": "0.1"}',
        '{"others": Infinity}',
        '{"cpu": [1]}',
        '{"odd": 1}',
    ],
)
def test_a_line_that_no_sampler_wrote(tree: Tree, tmp_path: Path, line: str) -> None:
    """Whole JSON of another shape is no cut line: it is refused by its number."""
    path = tmp_path / "telemetry.jsonl"
    sound = asdict(Sample(1.0, tree.reader().read()))
    value = json.loads(line)
    for name in value if isinstance(value, dict) and value else ():
        inner = sound["cpu"] if name in ("others", "odd") else sound
        inner[name] = value[name]
        value = sound
    path.write_text(f"{json.dumps(asdict(Sample(0.5, tree.reader().read())))}\n{json.dumps(value)}\n")
    with pytest.raises(EvidenceError, match="line 2: no look at the machine"):
        read_samples(path)


def test_the_sampler_dies_with_its_parent(tmp_path: Path) -> None:
    """SIGKILL for the parent: the pipe closes, the sampler goes, the file stays."""
    path = tmp_path / "telemetry.jsonl"
    program = (
        "import os, sys, time\nfrom pathlib import Path\nfrom harness.machine.telemetry import sampling\n"
        "with sampling(Path(sys.argv[1]), watch=os.getpid(), interval_s=0.05) as sampler:\n"
        "    print(sampler.pid, flush=True)\n    time.sleep(60)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        env=harness_environment(),
    )
    assert parent.stdout is not None
    sampler = int(parent.stdout.readline())
    wait_for_lines(path, 1)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    while _runs(sampler):
        time.sleep(0.05)
    assert read_samples(path)


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def test_it_ends_at_once_when_the_pipe_is_closed(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(writing)
    try:
        assert sample_until_closed(tmp_path / "t.jsonl", os.getpid(), [], 5.0, reading) == 0
    finally:
        os.close(reading)


# ---- what it witnesses ----------------------------------------------------------------------------------------------

QUIET = CpuSample(2400.0, 0.1, 1.0, 0.05, 0.0, 100.0, 0.0, 0.0)
CARD = GpuSample("GPU-aa", 1530, 877, 250.0, 60, 99, 1000, ())


def _sample(at: float, cpu: CpuSample = QUIET, *cards: GpuSample) -> Sample:
    return Sample(at, cpu, cards)


def test_a_quiet_stretch_gives_no_doubt() -> None:
    seen = witness([_sample(1.0, QUIET, CARD), _sample(2.0, QUIET, CARD)])
    assert not seen.excuses
    assert (seen.samples, seen.sm_mhz_low, seen.temperature_high) == (2, 1530, 60)


def test_stolen_time_is_a_doubt() -> None:
    stolen = CpuSample(2400.0, 0.1, 1.0, 0.05, 0.04, 100.0, 0.0, 0.0)
    assert witness([_sample(1.0, stolen)]).doubts == ("0.04 processors' worth of time was taken by other machines",)


@pytest.mark.parametrize(("others", "spare", "doubted"), [(0.25, 0.0, False), (0.26, 0.0, True), (0.9, 1.0, False)])
def test_neighbours_are_a_doubt_where_they_cost_us(others: float, spare: float, doubted: bool) -> None:
    cpu = CpuSample(2400.0, 0.1, 1.0, others, 0.0, 100.0, 0.0, 0.0)
    assert witness([_sample(1.0, cpu)], spare).excuses is doubted


def test_a_throttled_card_is_a_doubt() -> None:
    hot = GpuSample("GPU-aa", 1200, 877, 300.0, 84, 99, 1000, ("power cap",))
    seen = witness([_sample(1.0, QUIET, CARD), _sample(2.0, QUIET, hot)])
    assert seen.doubts == ("the GPU's clocks were held down: power cap",)
    assert (seen.sm_mhz_low, seen.sm_mhz_high) == (1200, 1530)


def test_nothing_told_is_nothing_claimed() -> None:
    seen = witness([])
    assert (seen.samples, seen.steal, seen.others, seen.doubts) == (0, None, None, ())


def test_the_samples_of_a_stretch_of_time() -> None:
    """The sample after the end counts: its rates are about the time before it."""
    samples = [_sample(float(at)) for at in range(6)]
    assert [sample.at for sample in between(samples, 1.5, 3.2)] == [2.0, 3.0, 4.0]
    assert [sample.at for sample in between(samples, 4.5, 9.0)] == [5.0]
