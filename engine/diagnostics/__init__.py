"""Tools that look at a running engine: state replay, drift between processes, a ledger of verification."""
