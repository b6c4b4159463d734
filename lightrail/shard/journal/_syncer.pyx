# cython: language_level=3
"""Writes and syncs, one job at a time, in a thread that needs the interpreter's lock for none of them.

Python releases its lock for each call of the disk, and waits for it after each one, against the loop, which is
just then at work on the next commit: a commit of Python's thread waits four times.
"""

from libc.stdint cimport int64_t

cdef extern from *:
    """
    #include <errno.h>
    #include <pthread.h>
    #include <stdint.h>
    #include <time.h>
    #include <unistd.h>

    static int write_and_sync(int file, const char *data, size_t length, off_t offset, int64_t *sync_ns)
    {
        struct timespec begun, ended;
        int failed;
        while (length) {
            ssize_t written = pwrite(file, data, length, offset);
            if (written < 0 && errno == EINTR)
                continue;
            if (written <= 0)
                return written ? errno : EIO;
            data += written;
            length -= written;
            offset += written;
        }
        clock_gettime(CLOCK_MONOTONIC, &begun);
        while ((failed = fdatasync(file)) && errno == EINTR)
            ;
        clock_gettime(CLOCK_MONOTONIC, &ended);
        *sync_ns = (ended.tv_sec - begun.tv_sec) * 1000000000LL + (ended.tv_nsec - begun.tv_nsec);
        return failed ? errno : 0;
    }

    static void announce(int event)
    {
        uint64_t one = 1;
        while (write(event, &one, sizeof one) < 0 && errno == EINTR)
            ;
    }
    """
    int write_and_sync(int file, const char *data, size_t length, long offset, int64_t *sync_ns) nogil
    void announce(int event) nogil

cdef extern from "<semaphore.h>" nogil:
    ctypedef struct sem_t:
        pass
    int sem_init(sem_t *semaphore, int shared, unsigned int value)
    int sem_post(sem_t *semaphore)
    int sem_wait(sem_t *semaphore)


cdef class Syncer:
    """One job at a time: `submit`, then `result` when the eventfd says that it is done.

    `run` is for a thread of its own, and returns after `close`.
    """

    cdef sem_t _submitted
    cdef int _event
    cdef int _file
    cdef long _offset
    cdef bytes _bytes
    cdef const char *_data
    cdef size_t _length
    cdef int _error
    cdef int64_t _sync_ns
    cdef bint _is_asked

    def __cinit__(self, int event):
        self._event = event
        sem_init(&self._submitted, 0, 0)

    def submit(self, int file, bytes data not None, long offset):
        """Writes `data` to the file at `offset`, then syncs the file."""
        assert self._bytes is None, "one job at a time"
        self._bytes = data
        self._file, self._offset = file, offset
        self._data, self._length = data, len(data)
        self._is_asked = True
        sem_post(&self._submitted)

    def result(self):
        """(errno or 0, nanoseconds of the sync) of the job that is done."""
        self._bytes = None
        return self._error, self._sync_ns

    def close(self):
        """Ends `run`, after the job under way."""
        sem_post(&self._submitted)

    def run(self):
        """Does what is submitted, until `close`."""
        with nogil:
            while True:
                while sem_wait(&self._submitted):
                    pass
                if not self._is_asked:
                    break
                self._is_asked = False
                self._error = write_and_sync(
                    self._file, self._data, self._length, self._offset, &self._sync_ns
                )
                announce(self._event)
