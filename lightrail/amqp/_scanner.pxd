# Types of scanner.py, for Cython: see the theory there.

cimport cython

cdef Py_ssize_t SHORTEST, TAG_BYTES_MAX, TAG_DIGITS_MAX, TAG_NUMBER_BYTES_MAX, FIELDS_MAX, EXPIRY_INDEX, HEADER_FIELDS, PRIORITY_DEFAULT
cdef long long UINT_MAX, EXPIRY_SPAN_MS

@cython.locals(number=cython.longlong)
cdef long long _u32(bytes data, Py_ssize_t at)

@cython.locals(code=cython.int)
cdef long long _uint(bytes data, Py_ssize_t at, Py_ssize_t stop)

cdef Py_ssize_t _uint_width(int code)

@cython.locals(code=cython.int)
cdef int _boolean(bytes data, Py_ssize_t at, Py_ssize_t stop)

@cython.locals(code=cython.int, group=cython.int)
cdef Py_ssize_t _after(bytes data, Py_ssize_t at, Py_ssize_t stop)

@cython.locals(index=Py_ssize_t, octet=cython.int, number=cython.longlong)
cpdef long long tag_number(bytes data, Py_ssize_t at, Py_ssize_t stop, int form)

@cython.locals(size=Py_ssize_t, code=cython.int, at=Py_ssize_t, handle=cython.longlong, channel=cython.longlong)
cpdef long long lane(bytes data, Py_ssize_t position, Py_ssize_t end)

@cython.locals(code=cython.int, after=Py_ssize_t)
cdef Py_ssize_t _fields_end(bytes data, Py_ssize_t at, Py_ssize_t stop)

@cython.final
cdef class _Frame:
    cdef Py_ssize_t tag_at, tag_end, payload_at, head_end
    cdef long long message_format, expiry, ttl, delivery_count
    cdef int priority
    cdef bint settled, expires, durable

@cython.locals(fields_end=Py_ssize_t, count=cython.longlong, index=cython.longlong, number=cython.longlong, flag=cython.int)
cdef bint _read_transfer(_Frame frame, bytes data, Py_ssize_t at, Py_ssize_t stop, long long handle, long long expected)

@cython.locals(start=Py_ssize_t, at=Py_ssize_t, newest=cython.int, section=cython.int, code=cython.int)
cdef bint _read_message(_Frame frame, bytes data, Py_ssize_t stop)

@cython.locals(fields_end=Py_ssize_t, count=cython.longlong, code=cython.int, _=cython.int, high=cython.longlong)
cdef bint _read_properties(_Frame frame, bytes data, Py_ssize_t at, Py_ssize_t stop)

@cython.locals(fields_end=Py_ssize_t, count=cython.longlong, index=cython.longlong, code=cython.int, flag=cython.int, number=cython.longlong)
cdef bint _read_header(_Frame frame, bytes data, Py_ssize_t at, Py_ssize_t stop)

@cython.locals(index=Py_ssize_t)
cdef bint _same(bytes data, Py_ssize_t at, Py_ssize_t other, Py_ssize_t count)

cdef bint _near(long long one, long long other)

@cython.locals(
    payloads=list, frame=_Frame, channel=cython.longlong, handle=cython.longlong, settled=cython.bint,
    message_format=cython.longlong, head_at=Py_ssize_t, head_size=Py_ssize_t, expires=cython.bint,
    latest=cython.longlong, earliest=cython.longlong, count=Py_ssize_t, size=Py_ssize_t, stop=Py_ssize_t,
    start=Py_ssize_t, at=Py_ssize_t, mixed=cython.bint, durable=cython.bint, longest=cython.longlong, shortest=cython.longlong,
)
cpdef tuple take(
    bytes data, Py_ssize_t position, Py_ssize_t end, long long lane, long long expected, Py_ssize_t limit,
    Py_ssize_t frame_max, Py_ssize_t message_max, int settlement, list tags, bint mixes=*,
    int form=*, long long number=*,
)

@cython.locals(start=Py_ssize_t, size=Py_ssize_t, stop=Py_ssize_t)
cpdef bint shorten_ttl(bytearray data, object ends, long long base, long long left_ms)

@cython.locals(code=cython.int, fields=Py_ssize_t, count=cython.int, index=cython.int, ttl=cython.longlong)
cdef bint _shorten(bytearray data, Py_ssize_t at, Py_ssize_t stop, long long left_ms)

@cython.locals(
    parts=list, after=list, frame=_Frame, size=Py_ssize_t, start=Py_ssize_t, stop=Py_ssize_t, rest=Py_ssize_t,
    head=bytes, head_at=Py_ssize_t, head_size=Py_ssize_t, total=Py_ssize_t,
)
cpdef tuple redeliver(
    bytes data, Py_ssize_t position, object ends, long long base, long long attempts, long long left_ms
)

@cython.locals(section=cython.int)
cdef Py_ssize_t _head_end(bytes data, Py_ssize_t at, Py_ssize_t stop)

@cython.locals(ttl=cython.longlong, count=cython.longlong, section=bytearray)
cdef bytes _header_again(_Frame frame, long long attempts, long long left_ms)

cdef void _append_uint(bytearray section, long long number)
