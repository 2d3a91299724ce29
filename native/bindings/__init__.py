"""Typed Python faces of the native CPU ops, a module a family; `native.ops` gathers them."""
