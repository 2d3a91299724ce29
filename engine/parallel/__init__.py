"""Tensor parallelism: which rank owns which rows. Pure shard plans, and the group that is passed in."""
