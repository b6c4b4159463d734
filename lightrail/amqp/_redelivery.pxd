# Types of redelivery.py, for Cython: see the theory in scanner.py.

cimport cython
from lightrail.amqp cimport _transfers as transfers

@cython.locals(end=cython.longlong, start=Py_ssize_t, size=Py_ssize_t, stop=Py_ssize_t)
cpdef bint shorten_ttl(bytearray data, object ends, long long base, long long left_ms) except -1

@cython.locals(code=cython.int, fields=Py_ssize_t, count=cython.int, index=cython.int, ttl=cython.longlong)
cdef bint _shorten(bytearray data, Py_ssize_t at, Py_ssize_t stop, long long left_ms) except -1

@cython.locals(
    parts=list, after=list, frame=transfers.TransferFrame, end=cython.longlong, size=Py_ssize_t,
    start=Py_ssize_t, stop=Py_ssize_t, rest=Py_ssize_t, head=bytes, head_at=Py_ssize_t, head_size=Py_ssize_t,
    total=Py_ssize_t,
)
cpdef tuple redeliver(
    bytes data, Py_ssize_t position, object ends, long long base, long long attempts, long long left_ms
)

@cython.locals(section=cython.int)
cdef Py_ssize_t _head_end(bytes data, Py_ssize_t at, Py_ssize_t stop) except? -1

@cython.locals(ttl=cython.longlong, count=cython.longlong, section=bytearray)
cdef bytes _header_again(transfers.TransferFrame frame, long long attempts, long long left_ms)

cdef void _append_uint(bytearray section, long long number)
