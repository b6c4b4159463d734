"""The commands of lightrail-admin that use the gateway of a running broker.

Exit statuses: 0 done, 1 refused or failed, 2 wrong use, 3 no gateway answers, 4 (receive) no message arrived.
"""
