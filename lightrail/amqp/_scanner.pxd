# Types of scanner.py, for Cython: see the theory there.

cimport cython
from lightrail.amqp cimport _transfers as transfers

cdef long long EXPIRY_SPAN_MS

cdef bint _near(long long one, long long other) noexcept

@cython.locals(
    payloads=list, frame=transfers.TransferFrame, settled=cython.bint, message_format=cython.longlong,
    head_at=Py_ssize_t, head_size=Py_ssize_t, expires=cython.bint, latest=cython.longlong,
    earliest=cython.longlong, count=Py_ssize_t, stop=Py_ssize_t, start=Py_ssize_t, mixed=cython.bint,
    durable=cython.bint, longest=cython.longlong, shortest=cython.longlong,
)
cpdef tuple take(
    bytes data, Py_ssize_t position, Py_ssize_t end, long long lane, long long expected, Py_ssize_t limit,
    Py_ssize_t frame_max, Py_ssize_t message_max, int settlement, list tags, bint mixes=*,
    int form=*, long long number=*,
)
