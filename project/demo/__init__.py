"""The demonstration that `make demo` runs: real files, real processes, one of them killed."""
