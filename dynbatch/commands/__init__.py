"""The commands `dynbatch generate` and `dynbatch memory`: one file each, and `main` for all."""
