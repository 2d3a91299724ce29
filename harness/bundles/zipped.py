"""A bundle as one zip file, and back. Reading trusts nothing: names, links, sizes and ratios are checked before a byte
is written, and what comes out is checked as a bundle before it gets its name."""

from __future__ import annotations

import os
import shutil
import stat
import zipfile
from pathlib import Path

from harness.bundles import bag
from harness.errors import EvidenceError, UsageError, file_error
from harness.files import CHUNK, outside_bundles, sync_folder, writing

STAMP = (1980, 1, 1, 0, 0, 0)  # equal bundles give equal zips
RATIO_LIMIT = 200  # text compresses well, a bomb compresses thousands of times
_SMALL = 1 << 16  # below this a ratio says nothing


def write_zip(bundle: Path, target: Path) -> None:
    """Pack a bundle, checked first, below one folder of its own name. The same bundle gives the same bytes."""
    outside_bundles(target)
    checked = bag.check(bundle)
    names = sorted([*checked.members, *bag.TAG_FILES, bag.TAG_MANIFEST])
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    with writing(target):
        if target.exists():
            raise UsageError(f"{target} is there already", "give a new name")
        try:
            with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
                for name in names:
                    entry = zipfile.ZipInfo(f"{bundle.resolve().name}/{name}", STAMP)
                    entry.external_attr = (stat.S_IFREG | 0o444) << 16
                    entry.compress_type = zipfile.ZIP_DEFLATED
                    with (bundle / name).open("rb") as source, archive.open(entry, "w", force_zip64=True) as sink:
                        shutil.copyfileobj(source, sink, CHUNK)
            temporary.replace(target)
            sync_folder(target.resolve().parent)
        finally:
            temporary.unlink(missing_ok=True)


def read_zip(source: Path, out: Path) -> Path:
    """Unpack a zip of one bundle below ``out`` and check it; gives the bundle's folder."""
    outside_bundles(out)
    if not source.exists():
        raise UsageError(f"there is nothing at {source}", "give a zip that `python -m harness export` made")
    if not source.is_file():  # of a device or a pipe the end, where a zip has its index, is looked for in vain
        raise UsageError(f"{source} is no regular file", "give a zip that `python -m harness export` made")
    try:
        with zipfile.ZipFile(source) as archive:
            entries = archive.infolist()
            name = _safe(source, entries)
            place = out / name
            if place.exists():
                raise UsageError(f"{place} is there already", "a bundle is never overwritten")
            folder = out / f"{name}.unfinished"
            with writing(folder):
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
                for entry in entries:
                    if not entry.is_dir():
                        _unpack(archive, entry, folder / entry.filename.partition("/")[2])
            bag.check(folder)
            with writing(place):
                folder.rename(place)
            return place
    except OSError as error:
        raise file_error(error, source, "read") from error
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, UnicodeDecodeError, ValueError) as error:
        raise EvidenceError(f"{source}: not a readable zip: {error}") from error


def _safe(source: Path, entries: list[zipfile.ZipInfo]) -> str:
    """The one top folder of a zip all of whose entries are plain files inside it."""
    if not 0 < len(entries) <= bag.COUNT_LIMIT:
        raise EvidenceError(f"{source}: {len(entries)} entries; 1 to {bag.COUNT_LIMIT} are read")
    seen: set[str] = set()
    total = 0
    for entry in entries:
        name = entry.filename.removesuffix("/")
        kind = stat.S_IFMT(entry.external_attr >> 16)
        if reason := bag.unsafe_path(name):
            raise EvidenceError(f"{source}: entry {name[:80]!r} {reason}")
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR) or entry.flag_bits & 0x1:
            raise EvidenceError(f"{source}: entry {name!r} is a link, a special file or encrypted")
        if name.casefold() in seen:
            raise EvidenceError(f"{source}: entry {name!r} is there twice")
        seen.add(name.casefold())
        total += entry.file_size
        packed = max(entry.compress_size, 1)
        if entry.file_size > _SMALL and entry.file_size / packed > RATIO_LIMIT:
            raise EvidenceError(f"{source}: entry {name!r} would grow {entry.file_size // packed} times")
        if entry.file_size > bag.MEMBER_LIMIT or total > bag.TOTAL_LIMIT:
            raise EvidenceError(f"{source}: entry {name!r} is over the limits of a bundle")
    tops = {entry.filename.partition("/")[0] for entry in entries}
    if len(tops) != 1 or any("/" not in entry.filename for entry in entries):
        raise EvidenceError(f"{source}: a zip of one bundle has one folder at its top, found {len(tops)}")
    return tops.pop()


def _unpack(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, target: Path) -> None:
    """Write one entry, never more bytes than it stated."""
    target.parent.mkdir(parents=True, exist_ok=True)
    left = entry.file_size
    with archive.open(entry) as packed, target.open("xb") as stream:
        while chunk := packed.read(CHUNK):
            left -= len(chunk)
            if left < 0:
                raise EvidenceError(f"{entry.filename}: larger than the zip stated")
            stream.write(chunk)
