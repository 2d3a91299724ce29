"""BagIt 1.0 (RFC 8493): sealing a folder, and checking one more strictly than the RFC asks.

A bag is refused when a member was changed, is missing or extra, is a link or special file, clashes with another name
by case or Unicode form, would escape the folder, or is larger than a bundle has reason to be.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from harness.errors import EvidenceError, UsageError, file_error
from harness.files import CHUNK, write_new

DECLARATION = b"BagIt-Version: 1.0\nTag-File-Character-Encoding: UTF-8\n"
MANIFEST = "manifest-sha256.txt"
TAG_FILES = ("bag-info.txt", "bagit.txt", MANIFEST)
TAG_MANIFEST = "tagmanifest-sha256.txt"
MEMBER_LIMIT = 1 << 30
TOTAL_LIMIT = 4 << 30
COUNT_LIMIT = 20_000
PATH_LIMIT = 400
MANIFEST_LIMIT = 16 << 20
_LINE = re.compile(r"([0-9a-f]{64}) [ *](\S.*)")
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\\:*?\"<>|%]")


@dataclass(frozen=True)
class Member:
    """A file of the payload: path below the bag (``data/...``), bytes, and SHA-256."""

    path: str
    size: int
    sha256: str


# ---- sealing --------------------------------------------------------------------------------------------------------


def finish(folder: Path, info: Mapping[str, str]) -> str:
    """Write the tag files of a bag whose payload lies in ``folder/data``; gives the digest of its manifest."""
    members = [Member(path, size, _sha256(folder / path)) for path, size in sorted(walk(folder / "data", "data"))]
    problems = _name_problems(member.path for member in members)
    if problems:
        raise EvidenceError(f"{folder}: cannot be sealed: {problems[0]}")
    oxum = f"{sum(member.size for member in members)}.{len(members)}"
    write_new(folder / "bagit.txt", DECLARATION)
    write_new(folder / "bag-info.txt", _info_bytes({**info, "Payload-Oxum": oxum}))
    manifest = "".join(f"{member.sha256}  {member.path}\n" for member in members).encode()
    write_new(folder / MANIFEST, manifest)
    tags = "".join(f"{_sha256(folder / name)}  {name}\n" for name in TAG_FILES).encode()
    write_new(folder / TAG_MANIFEST, tags)
    return hashlib.sha256(manifest).hexdigest()


def _info_bytes(info: Mapping[str, str]) -> bytes:
    for key, value in info.items():
        if not key or ":" in key or any(character in key + value for character in "\r\n"):
            raise EvidenceError(f"bag-info.txt: {key!r} = {value!r} does not fit on a line")
    return "".join(f"{key}: {value}\n" for key, value in info.items()).encode()


# ---- checking -------------------------------------------------------------------------------------------------------


class Bag:
    """A bag that was found whole. ``read`` checks each member again, so that a later change is seen too."""

    def __init__(self, folder: Path, members: Iterable[Member], digest: str, info: dict[str, str]) -> None:
        self.folder = folder
        self.members = {member.path: member for member in members}
        self.digest = digest
        self.info = info

    def read(self, path: str) -> bytes:
        """Bytes of ``data/<path>``."""
        member = self.members.get(f"data/{path}")
        if member is None:
            raise EvidenceError(f"{self.folder}: there is no member data/{path}")
        with _opened(self.folder / member.path) as stream:
            content = stream.read()
        if hashlib.sha256(content).hexdigest() != member.sha256:
            raise EvidenceError(f"{self.folder}/{member.path} changed while it was read")
        return content

    def has(self, path: str) -> bool:
        """Whether the manifest names ``data/path``."""
        return f"data/{path}" in self.members


def check(folder: Path) -> Bag:
    """Check a bag in whole. Raises ``EvidenceError`` that lists every problem, or gives the bag."""
    if not os.path.lexists(folder):
        raise UsageError(f"there is nothing at {folder}", "give the folder of a bundle")
    if folder.is_symlink() or not folder.is_dir():
        raise EvidenceError(f"{folder} is no folder", "a bundle is a folder with bagit.txt in it")
    try:
        return _check(folder)
    except OSError as error:
        raise file_error(error, folder, "read") from error


def _check(folder: Path) -> Bag:
    if not (folder / "bagit.txt").exists():
        unfinished = " (its sealing was interrupted; seal the run again)" if folder.name.endswith(".unfinished") else ""
        raise EvidenceError(f"{folder} has no bagit.txt: it is no sealed bundle{unfinished}")
    found = dict(walk(folder, ""))
    problems = _name_problems(found)
    expected_tags = {*TAG_FILES, TAG_MANIFEST}
    problems += [f"{name} is missing" for name in sorted(expected_tags - set(found))]
    problems += [
        f"{path} is extra" for path in sorted(found) if not path.startswith("data/") and path not in expected_tags
    ]
    if problems:
        raise _broken(folder, problems)
    declaration = _small(folder / "bagit.txt")
    if declaration != DECLARATION:
        raise _broken(folder, [f"bagit.txt is not that of BagIt 1.0 in UTF-8: {declaration[:80]!r}"])
    tags = read_manifest(_small(folder / TAG_MANIFEST), TAG_MANIFEST, problems)
    problems += [f"{TAG_MANIFEST} does not list {name}" for name in TAG_FILES if name not in tags]
    problems += [f"{TAG_MANIFEST} lists {name}, which is no tag file" for name in tags if name not in TAG_FILES]
    problems += [f"{name} was changed" for name in TAG_FILES if name in tags and _sha256(folder / name) != tags[name]]
    stated = read_manifest(_small(folder / MANIFEST), MANIFEST, problems)
    payload = {path for path in found if path.startswith("data/")}
    problems += [f"{path} is missing" for path in stated if path not in payload]
    problems += [f"{path} is extra" for path in sorted(payload) if path not in stated]
    members = []
    for path in sorted(payload & set(stated)):
        members.append(Member(path, found[path], stated[path]))
        if _sha256(folder / path) != stated[path]:
            problems.append(f"{path} was changed")
    info = _info(folder / "bag-info.txt", problems)
    oxum = f"{sum(found[path] for path in payload)}.{len(payload)}"
    if info.get("Payload-Oxum") != oxum:
        problems.append(f"Payload-Oxum is {info.get('Payload-Oxum')}, the payload has {oxum}")
    if problems:
        raise _broken(folder, problems)
    return Bag(folder, members, _sha256(folder / MANIFEST), info)


def _broken(folder: Path, problems: list[str]) -> EvidenceError:
    shown = "; ".join(problems[:5]) + (f"; and {len(problems) - 5} more" if len(problems) > 5 else "")
    return EvidenceError(
        f"{folder} is not as it was sealed: {shown}", "do not trust its figures; get it again from its source"
    )


def walk(folder: Path, prefix: str) -> Iterator[tuple[str, int]]:
    """Path and size of every file below ``folder``, no link followed; an empty folder or special file is refused."""
    total = count = 0
    pending = [(folder, prefix)]
    while pending:
        here, name = pending.pop()
        entries = list(os.scandir(here))
        if not entries:
            raise EvidenceError(f"{here} is an empty folder, which no manifest can cover")
        for entry in entries:
            path = f"{name}/{entry.name}" if name else entry.name
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                pending.append((Path(entry.path), path))
                continue
            if not stat.S_ISREG(status.st_mode):
                kind = "a link" if stat.S_ISLNK(status.st_mode) else "no regular file"
                raise EvidenceError(f"{path} in {folder} is {kind}", "a bundle holds plain files only")
            total, count = total + status.st_size, count + 1
            if status.st_size > MEMBER_LIMIT or total > TOTAL_LIMIT or count > COUNT_LIMIT:
                raise EvidenceError(
                    f"{path} in {folder}: over the limit of {MEMBER_LIMIT} bytes a member, {TOTAL_LIMIT} in all, "
                    f"{COUNT_LIMIT} members"
                )
            yield path, status.st_size


def _name_problems(paths: Iterable[str]) -> list[str]:
    problems = []
    seen: dict[str, str] = {}
    for path in paths:
        if reason := unsafe_path(path):
            problems.append(f"{path!r} {reason}")
            continue
        parts = PurePosixPath(path).parts
        for end in range(1, len(parts) + 1):
            name = "/".join(parts[:end])
            other = seen.setdefault(unicodedata.normalize("NFC", name).casefold(), name)
            if other != name:
                problems.append(f"{name!r} and {other!r} are one name on some file systems")
    return problems


def unsafe_path(path: str) -> str:
    """Why a member's path is refused; empty when it is a plain relative path that every system reads the same way."""
    if len(path.encode("utf-8", "surrogateescape")) > PATH_LIMIT:
        return "is too long"
    if path.startswith("/") or any(part in ("", ".", "..") for part in path.split("/")):
        return "is absolute or leaves the folder"
    if _FORBIDDEN.search(path) or any(0xD800 <= ord(character) <= 0xDFFF for character in path):
        return "holds characters that some systems treat specially"
    if any(part != part.strip() or part.endswith(".") for part in path.split("/")):
        return "has a part that ends in a space or point"
    return ""


def read_manifest(content: bytes, name: str, problems: list[str]) -> dict[str, str]:
    """SHA-256 by path, out of a manifest called ``name``; what is wrong with a line is added to ``problems``."""
    table: dict[str, str] = {}
    try:
        lines = content.decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError:
        problems.append(f"{name} is not UTF-8")
        return table
    for number, line in enumerate(lines, 1):
        match = _LINE.fullmatch(line)
        if match is None:
            problems.append(f"{name}, line {number}: not a SHA-256 and a path: {line[:80]!r}")
        elif reason := unsafe_path(match[2]):
            problems.append(f"{name}, line {number}: {match[2][:80]!r} {reason}")
        elif match[2] in table:
            problems.append(f"{name}, line {number}: {match[2]} is listed twice")
        else:
            table[match[2]] = match[1]
    return table


def _info(path: Path, problems: list[str]) -> dict[str, str]:
    table: dict[str, str] = {}
    try:
        lines = _small(path).decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError:
        problems.append("bag-info.txt is not UTF-8")
        return table
    for line in lines:
        key, colon, value = line.partition(": ")
        if not colon or key in table:
            problems.append(f"bag-info.txt: not a label and a value, or said twice: {line[:80]!r}")
        table[key] = value
    return table


def _small(path: Path) -> bytes:
    with _opened(path) as stream:
        content = stream.read(MANIFEST_LIMIT + 1)
    if len(content) > MANIFEST_LIMIT:
        raise EvidenceError(f"{path} is larger than {MANIFEST_LIMIT} bytes")
    return content


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with _opened(path) as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _opened(path: Path) -> BinaryIO:
    """Open a file for reading, never through a link in its last part (it may have been swapped since the walk)."""
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")
