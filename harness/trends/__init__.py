"""Many bundles in the order of their time: what stepped, and what the latest nights agree in."""
