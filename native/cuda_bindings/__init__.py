"""Typed functions over the CUDA launchers of the native library, grouped by kind; `native.ops_cuda` names them all."""
