# Types of transfers.py, for Cython: see the theory in scanner.py.
#
# Each function that may raise says its value for that: without one, Cython looks for an exception after each
# call from another module, which took a tenth of a frame.

cimport cython

cdef Py_ssize_t SHORTEST, TAG_BYTES_MAX, TAG_DIGITS_MAX, TAG_NUMBER_BYTES_MAX, FIELDS_MAX, EXPIRY_INDEX, HEADER_FIELDS, PRIORITY_DEFAULT
cdef long long UINT_MAX

@cython.locals(number=cython.longlong)
cdef long long u32(bytes data, Py_ssize_t at) except -1

@cython.locals(code=cython.int)
cdef long long uint(bytes data, Py_ssize_t at, Py_ssize_t stop) except? -1

cdef Py_ssize_t _uint_width(int code) noexcept

@cython.locals(code=cython.int)
cdef int _boolean(bytes data, Py_ssize_t at, Py_ssize_t stop) except? -1

@cython.locals(code=cython.int, group=cython.int)
cdef Py_ssize_t _after(bytes data, Py_ssize_t at, Py_ssize_t stop) except? -1

@cython.locals(code=cython.int, after=Py_ssize_t)
cdef Py_ssize_t list_end(bytes data, Py_ssize_t at, Py_ssize_t stop) except? -1

@cython.locals(index=Py_ssize_t, octet=cython.int, number=cython.longlong)
cpdef long long tag_number(bytes data, Py_ssize_t at, Py_ssize_t stop, int form) except? -1

@cython.locals(size=Py_ssize_t, code=cython.int, at=Py_ssize_t, handle=cython.longlong, channel=cython.longlong)
cpdef long long lane(bytes data, Py_ssize_t position, Py_ssize_t end) except? -1

@cython.final
cdef class TransferFrame:
    cdef Py_ssize_t tag_at, tag_end, payload_at, head_end
    cdef long long message_format, expiry, ttl, delivery_count
    cdef int priority
    cdef bint settled, expires, durable

@cython.locals(
    size=Py_ssize_t, at=Py_ssize_t, stop=Py_ssize_t, fields_end=Py_ssize_t, count=cython.longlong,
    index=cython.longlong, number=cython.longlong, flag=cython.int,
)
cdef Py_ssize_t read_transfer(
    TransferFrame frame, bytes data, Py_ssize_t position, Py_ssize_t end, Py_ssize_t frame_max, long long lane,
    long long expected,
) except -1

@cython.locals(start=Py_ssize_t, at=Py_ssize_t, newest=cython.int, section=cython.int, code=cython.int)
cdef bint read_message(TransferFrame frame, bytes data, Py_ssize_t stop) except -1

@cython.locals(fields_end=Py_ssize_t, count=cython.longlong, code=cython.int, _=cython.int, high=cython.longlong)
cdef bint _read_properties(TransferFrame frame, bytes data, Py_ssize_t at, Py_ssize_t stop) except -1

@cython.locals(fields_end=Py_ssize_t, count=cython.longlong, index=cython.longlong, code=cython.int, flag=cython.int, number=cython.longlong)
cdef bint read_header(TransferFrame frame, bytes data, Py_ssize_t at, Py_ssize_t stop) except -1

@cython.locals(index=Py_ssize_t)
cdef bint same(bytes data, Py_ssize_t at, Py_ssize_t other, Py_ssize_t count) except -1
