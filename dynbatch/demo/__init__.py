"""`python -m dynbatch.demo`: a model that learns what commands mean, without a data file."""
