"""What the answers must be, in fp64 or exact arithmetic, written from definitions and not from the code they judge.

Nothing here imports torch, the engine or the native library. Every function takes and returns NumPy arrays. Each oracle
is itself tried on hand-worked cases in ``tests/oracles``. ``tolerance`` says how far an implementation may be from an
oracle and why; ``judge`` turns a difference into a diagnosis.
"""
