"""The command line: `spanfold` and `python -m spanfold.engine`."""
