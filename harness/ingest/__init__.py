"""Other tools' results in our words: JUnit XML of any dialect, and the JSON of several benchmark tools.

What a foreign file does not tell is unknown, never zero and never green. Where a tool repeats inside one process, its
file is one replicate with raw rounds beside it; several files of one name are the repeats.
"""

from harness.ingest.files import FORMS, ingest_files, ingest_into

__all__ = ["FORMS", "ingest_files", "ingest_into"]
