"""One module a section of the report: records in, a ``Section`` out."""
