"""Sealed evidence: a bag of files, what it claims, how it is made, carried over, packed and signed."""
