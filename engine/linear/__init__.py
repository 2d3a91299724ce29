"""Weight formats and the pure decision how a projection is stored and computed."""
