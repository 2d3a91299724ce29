"""Every way in which a bag may not be as it was sealed; and that others accept what we seal."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import bagit
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.bundles import bag
from harness.errors import EvidenceError, UsageError


@pytest.fixture
def sealed_bag(tmp_path: Path) -> Path:
    return make(tmp_path / "bag")


def make(folder: Path) -> Path:
    (folder / "data" / "sub").mkdir(parents=True)
    (folder / "data" / "a.txt").write_text("a")
    (folder / "data" / "sub" / "b.txt").write_text("bb")
    bag.finish(folder, {"Bagging-Date": "2026-01-01"})
    return folder


def test_others_accept_it(sealed_bag: Path) -> None:
    done = subprocess.run(
        ["sha256sum", "--strict", "-c", "manifest-sha256.txt"], cwd=sealed_bag, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "data/a.txt: OK\ndata/sub/b.txt: OK\n"
    bagit.Bag(str(sealed_bag)).validate()
    checked = bag.check(sealed_bag)
    assert checked.read("a.txt") == b"a"
    assert checked.info == {"Bagging-Date": "2026-01-01", "Payload-Oxum": "3.2"}
    digest = subprocess.run(["sha256sum", "manifest-sha256.txt"], cwd=sealed_bag, capture_output=True, text=True)
    assert digest.stdout.split()[0] == checked.digest


def edit(path: str, old: bytes, new: bytes) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        content = (folder / path).read_bytes()
        assert old in content
        (folder / path).write_bytes(content.replace(old, new, 1))

    return change


def write(path: str, content: bytes = b"x") -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)

    return change


def link(folder: Path) -> None:
    (folder / "data" / "a.txt").unlink()
    (folder / "data" / "a.txt").symlink_to(folder / "data" / "sub" / "b.txt")


def link_folder(folder: Path) -> None:
    shutil.move(folder / "data" / "sub", folder.parent / "elsewhere")
    (folder / "data" / "sub").symlink_to(folder.parent / "elsewhere")


def append_lines(*lines: str) -> Callable[[Path], None]:
    """Add manifest lines and mend the tag manifest, as somebody would who knows the format."""

    def change(folder: Path) -> None:
        manifest = folder / "manifest-sha256.txt"
        manifest.write_text(manifest.read_text() + "".join(f"{'0' * 64}  {line}\n" for line in lines))
        retag(folder)

    return change


def retag(folder: Path) -> None:
    lines = [f"{bag._sha256(folder / name)}  {name}\n" for name in bag.TAG_FILES]
    (folder / bag.TAG_MANIFEST).write_text("".join(lines))


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (edit("data/a.txt", b"a", b"b"), "data/a.txt was changed"),
        (edit("data/a.txt", b"a", b"aa"), "Payload-Oxum is 3.2, the payload has 4.2"),
        (lambda folder: (folder / "data/a.txt").unlink(), "data/a.txt is missing"),
        (write("data/new.txt"), "data/new.txt is extra"),
        (write("note.txt"), "note.txt is extra"),
        (write("fetch.txt"), "fetch.txt is extra"),
        (write("manifest-md5.txt"), "manifest-md5.txt is extra"),
        (lambda folder: (folder / "data/empty").mkdir(), "empty folder"),
        (link, "data/a.txt in .* is a link"),
        (link_folder, "data/sub in .* is a link"),
        (lambda folder: os.mkfifo(folder / "data/pipe"), "data/pipe in .* is no regular file"),
        (lambda folder: (folder / "bag-info.txt").unlink(), "bag-info.txt is missing"),
        (lambda folder: (folder / "bagit.txt").unlink(), "no sealed bundle"),
        (edit("bagit.txt", b"1.0", b"0.9"), "not that of BagIt 1.0"),
        (edit("bag-info.txt", b"2026", b"2027"), "bag-info.txt was changed"),
        (edit("manifest-sha256.txt", b"data/a.txt", b"data/c.txt"), "manifest-sha256.txt was changed"),
        (append_lines("data/../../x"), "leaves the folder"),
        (append_lines("/etc/passwd"), "absolute"),
        (append_lines("data/a.txt"), "data/a.txt is listed twice"),
        (append_lines("data\\x"), "characters that some systems treat specially"),
        (append_lines("data/trailing./x"), "ends in a space or point"),
        (append_lines("data/" + "x" * 500), "is too long"),
        (append_lines("data/unknown"), "data/unknown is missing"),
        (write("data/A.TXT"), "'data/A.TXT' and 'data/a.txt' are one name|'data/a.txt' and 'data/A.TXT' are one name"),
        (write("data/SUB/x"), "are one name on some file systems"),
        (write("data/new\nline"), "characters that some systems"),
    ],
)
def test_spoilt(sealed_bag: Path, spoil: Callable[[Path], object], says: str) -> None:
    spoil(sealed_bag)
    with pytest.raises(EvidenceError, match=says):
        bag.check(sealed_bag)


def test_names_that_unicode_makes_one(sealed_bag: Path) -> None:
    (sealed_bag / "data" / "caf\u00e9").write_text("1")
    (sealed_bag / "data" / "cafe\u0301").write_text("2")
    with pytest.raises(EvidenceError, match="are one name on some file systems"):
        bag.check(sealed_bag)


def test_a_bag_with_clashing_names_cannot_be_sealed(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").write_text("1")
    (tmp_path / "data" / "X").write_text("2")
    with pytest.raises(EvidenceError, match="cannot be sealed"):
        bag.finish(tmp_path, {})
    with pytest.raises(EvidenceError, match="does not fit on a line"):
        bag._info_bytes({"a": "b\nc"})


@pytest.mark.parametrize(("limit", "value"), [("MEMBER_LIMIT", 1), ("TOTAL_LIMIT", 2), ("COUNT_LIMIT", 1)])
def test_limits(sealed_bag: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int) -> None:
    monkeypatch.setattr(bag, limit, value)
    with pytest.raises(EvidenceError, match="over the limit"):
        bag.check(sealed_bag)


def test_a_member_that_changes_between_check_and_use(sealed_bag: Path) -> None:
    checked = bag.check(sealed_bag)
    (sealed_bag / "data" / "a.txt").write_text("b")
    with pytest.raises(EvidenceError, match=r"a\.txt changed while it was read"):
        checked.read("a.txt")
    (sealed_bag / "data" / "a.txt").unlink()
    (sealed_bag / "data" / "a.txt").symlink_to("/etc/passwd")
    with pytest.raises(OSError, match="symbolic links"):
        checked.read("a.txt")
    with pytest.raises(EvidenceError, match="there is no member"):
        checked.read("nothing")


def test_what_is_no_bag(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is nothing at"):
        bag.check(tmp_path / "absent")
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("file", "link"):
        with pytest.raises(EvidenceError, match="is no folder"):
            bag.check(tmp_path / name)
    unfinished = tmp_path / "x.unfinished"
    unfinished.mkdir()
    with pytest.raises(EvidenceError, match="its sealing was interrupted"):
        bag.check(unfinished)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(data=st.data())
def test_any_changed_byte_is_seen(tmp_path: Path, data: st.DataObject) -> None:
    folder = tmp_path / "bag"
    shutil.rmtree(folder, ignore_errors=True)
    make(folder)
    path = data.draw(st.sampled_from(sorted(path for path in folder.rglob("*") if path.is_file())))
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    with pytest.raises(EvidenceError):
        bag.check(folder)


@given(st.text(max_size=30))
def test_paths_that_pass_stay_inside(path: str) -> None:
    if not bag.unsafe_path(path):
        assert not path.startswith("/")
        assert ".." not in path.split("/")
        assert os.path.normpath(path) == path
