"""Scripts that import `transformers` are left out of collection."""

collect_ignore = ["make_fixtures.py", "random_configurations.py"]
