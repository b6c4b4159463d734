"""The jobs of `lightrail-spark`: each module here is a command, with
`add_parser(subparsers)`, which returns the parser, and `run(args) -> int`, which returns the exit status.

Modules are imported whenever the command starts: what takes long to import (pyspark, pyarrow, deltalake) is
imported where it is used, in `run`.
"""
