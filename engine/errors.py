"""What the engine raises when it was given something it cannot use."""

from __future__ import annotations


class InputError(ValueError):
    """The caller's input cannot be used: the message names what was seen, what is allowed and what to do.

    The command line prints the message as one line and exits with 2. A ``ValueError`` that is not an ``InputError``
    is a defect of ours and keeps its traceback.
    """


class ModelFileError(InputError):
    """A model file is missing, truncated, foreign or of an architecture or format that the engine does not run."""
