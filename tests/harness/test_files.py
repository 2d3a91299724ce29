"""Writing: whole or not at all, and never over what is no regular file."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from harness.files import write_atomic


def test_a_device_is_written_to_and_stays_a_device() -> None:
    write_atomic(Path(os.devnull), b"report")
    assert Path(os.devnull).is_char_device()


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=write_atomic, args=(pipe, b"report"), daemon=True)
    writer.start()
    assert pipe.read_bytes() == b"report"
    writer.join(timeout=10)
    assert pipe.is_fifo()


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "report"
    file.write_bytes(b"old")
    write_atomic(file, b"new")
    assert file.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [file]
