"""The jobs of `lightrail-spark`: each module here is a command, with
`add_parser(subparsers)`, which returns the parser, and `run(args) -> int`, which returns the exit status.

All modules are imported whenever the command starts, so slow imports (pyspark, pyarrow, deltalake) are in
`run`, where they are used.
"""
