"""The script that makes the fixtures is left out of collection: it imports `transformers`."""

collect_ignore = ["make_fixtures.py"]
