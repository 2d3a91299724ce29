"""Operations: `functional` is the documented face, `reference` the plain torch twin, name for name."""
