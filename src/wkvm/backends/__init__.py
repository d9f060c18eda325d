"""Where a model runs: one protocol, one file per kind of device."""
