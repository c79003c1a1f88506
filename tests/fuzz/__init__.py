"""A fuzzer of the command line, the Python interface and the files: `python -m fuzz`, or `make fuzz`."""
