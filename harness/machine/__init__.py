"""Looking at the machine and holding it: what it is, who uses it, how it did while a scope ran."""
