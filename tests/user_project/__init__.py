"""A user's project in strict types: `make types` checks it here, `make install-check` against the
installed wheel."""
