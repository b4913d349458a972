"""The subcommands of `dynbatch`: a file each, and `main` for all."""
