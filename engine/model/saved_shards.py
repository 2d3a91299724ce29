"""Model folders that are cut for a number of ranks already: one file per rank, and a record of how many there are.

A rank then reads its own file alone. Such a folder fits one number of ranks and says which.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from engine.errors import InputError, ModelFileError

RECORD = "tensor_parallel.json"
_BESIDE = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def rank_file(rank: int, size: int) -> str:
    """The name of a rank's file."""
    return f"rank-{rank}-of-{size}.safetensors"


def saved_file(folder: Path, rank: int, size: int) -> Path | None:
    """The file of one rank in a folder that is cut already; None for a folder that is not.

    Raises ``InputError`` for a folder that was cut for another number of ranks, ``ModelFileError`` for a missing shard.
    """
    record = folder / RECORD
    if not record.is_file():
        return None
    try:
        saved = json.loads(record.read_text(encoding="utf-8"))["tp"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelFileError(f"{record}: no number of ranks in it ({error!r}); cut the model again") from error
    if saved != size:
        raise InputError(
            f"{folder} was saved for TP {saved}, this run is TP {size}; allowed: --tp {saved}, or the folder that it "
            "was cut from"
        )
    path = folder / rank_file(rank, size)
    if not path.is_file():
        raise ModelFileError(f"{path}: no such file; a shard is missing: python -m engine split makes all of them")
    return path


def save_shards(folder: Path, out: Path, size: int) -> list[Path]:
    """Cut the hybrid model in ``folder`` for ``size`` ranks into the new folder ``out``; the files of the ranks.

    Raises ``InputError`` for a model that ``size`` ranks cannot share and for an ``out`` that is there already.
    """
    from safetensors.torch import save_file

    from engine.model.checkpoint import Checkpoint
    from engine.model.hybrid_config import read_hybrid_config
    from engine.model.hybrid_shards import hybrid_format, hybrid_shard

    config = read_hybrid_config(folder)
    with Checkpoint(folder) as whole:
        weight_format = hybrid_format(whole.names)
    shards = [hybrid_shard(config, size, rank, weight_format) for rank in range(size)]
    if out.exists():
        raise InputError(f"{out} is there already; allowed: a new folder")
    out.mkdir(parents=True)
    paths = []
    for shard in shards:
        with Checkpoint(folder, shard=shard) as checkpoint:
            tensors = {name: checkpoint.read(name).contiguous() for name in checkpoint.names}
        paths.append(out / rank_file(shard.rank, size))
        save_file(tensors, paths[-1])
    for name in _BESIDE:
        if (folder / name).is_file():
            shutil.copyfile(folder / name, out / name)
    # Last: a folder without it was not cut to its end.
    (out / RECORD).write_text(json.dumps({"schema": 1, "tp": size}) + "\n", encoding="utf-8")
    return paths


def split_command(arguments: Sequence[str]) -> int:
    """Cut a model folder for --tp N once, so that each rank reads its own file alone."""
    parser = argparse.ArgumentParser(prog="python -m engine split", description=split_command.__doc__)
    parser.add_argument("model", type=Path, help="a Hugging Face model folder of the hybrid architecture")
    parser.add_argument("out", type=Path, help="the new folder")
    parser.add_argument("--tp", type=int, required=True, metavar="N", help="ranks")
    options = parser.parse_args(arguments)
    for path in save_shards(options.model, options.out, options.tp):
        print(f"{path}  {path.stat().st_size} bytes")
    return 0
