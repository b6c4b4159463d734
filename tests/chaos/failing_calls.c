/* Loaded before the C library (LD_PRELOAD): counts the calls that change files of one directory, and lets one of
 * them fail, or all syncs hang. Built by tests/chaos/failing_calls.py.
 *
 *   FAILING_DIRECTORY  calls on paths, and descriptors of paths, that begin so are counted, from 0
 *   FAILING_LOG        file to which the name of each of them is added, a line each
 *   FAILING_CALL       number of the call that fails; unset: none
 *   FAILING_ERRNO      what it fails with
 *   FAILING_SHORT      1: instead, a write takes half of its bytes and says so
 *   FAILING_HANG       while a file of this name is there, fsync and fdatasync do not return
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long calls;

static int is_ours(const char *path) {
    const char *directory = getenv("FAILING_DIRECTORY");
    return directory && path && !strncmp(path, directory, strlen(directory));
}

static int is_ours_fd(int fd) {
    char name[64], path[PATH_MAX];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(name, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return is_ours(path);
}

/* Counts a call; its errno where it is the one that fails, else 0. */
static int fault(const char *name) {
    const char *log = getenv("FAILING_LOG"), *which = getenv("FAILING_CALL"), *error = getenv("FAILING_ERRNO");
    pthread_mutex_lock(&lock);
    long number = calls++;
    if (log) {
        char line[64];
        int length = snprintf(line, sizeof line, "%s\n", name);
        int fd = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        if (fd >= 0) {
            if (syscall(SYS_write, fd, line, length) != length) abort();
            syscall(SYS_close, fd);
        }
    }
    pthread_mutex_unlock(&lock);
    return which && number == atol(which) ? (error ? atoi(error) : EIO) : 0;
}

static int is_short(void) {
    const char *value = getenv("FAILING_SHORT");
    return value && *value == '1';
}

static void hang(void) {
    const char *path = getenv("FAILING_HANG");
    while (path && !access(path, F_OK)) usleep(10000);
}

#define REAL(type, name, arguments) \
    static type (*real) arguments;  \
    if (!real) real = (type (*) arguments)dlsym(RTLD_NEXT, name)
#define FAIL_IF(ours, name)                \
    do {                                   \
        int error = (ours) ? fault(name) : 0; \
        if (error && !is_short()) {        \
            errno = error;                 \
            return -1;                     \
        }                                  \
    } while (0)

#define OPEN(symbol)                                                        \
    int symbol(const char *path, int flags, ...) {                          \
        REAL(int, #symbol, (const char *, int, ...));                       \
        va_list rest;                                                       \
        va_start(rest, flags);                                              \
        mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(rest, mode_t) : 0; \
        va_end(rest);                                                       \
        FAIL_IF(is_ours(path), "open");                                     \
        return real(path, flags, mode);                                     \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(symbol)                                                      \
    int symbol(int at, const char *path, int flags, ...) {                  \
        REAL(int, #symbol, (int, const char *, int, ...));                  \
        va_list rest;                                                       \
        va_start(rest, flags);                                              \
        mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(rest, mode_t) : 0; \
        va_end(rest);                                                       \
        FAIL_IF(is_ours(path), "open");                                     \
        return real(at, path, flags, mode);                                 \
    }
OPENAT(openat)
OPENAT(openat64)

#define WRITE(symbol, parameters, arguments, half)                          \
    ssize_t symbol parameters {                                             \
        REAL(ssize_t, #symbol, parameters);                                 \
        int error = is_ours_fd(fd) ? fault("write") : 0;                    \
        if (error && is_short()) {                                          \
            half;                                                           \
        } else if (error) {                                                 \
            errno = error;                                                  \
            return -1;                                                      \
        }                                                                   \
        return real arguments;                                              \
    }
WRITE(write, (int fd, const void *data, size_t size), (fd, data, size), size = (size + 1) / 2)
WRITE(pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at), size = (size + 1) / 2)
WRITE(pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at), size = (size + 1) / 2)
WRITE(pwritev, (int fd, const struct iovec *data, int count, off_t at), (fd, data, count, at), count = (count + 1) / 2)
WRITE(pwritev64, (int fd, const struct iovec *data, int count, off64_t at), (fd, data, count, at), count = (count + 1) / 2)
WRITE(pwritev2, (int fd, const struct iovec *data, int count, off_t at, int flags), (fd, data, count, at, flags), count = (count + 1) / 2)
WRITE(pwritev64v2, (int fd, const struct iovec *data, int count, off64_t at, int flags), (fd, data, count, at, flags), count = (count + 1) / 2)

#define ON_FD(symbol, name, parameters, arguments, before)                  \
    int symbol parameters {                                                 \
        REAL(int, #symbol, parameters);                                     \
        int ours = is_ours_fd(fd);                                          \
        if (ours) before;                                                   \
        FAIL_IF(ours, name);                                                \
        return real arguments;                                              \
    }
ON_FD(fsync, "sync", (int fd), (fd), hang())
ON_FD(fdatasync, "sync", (int fd), (fd), hang())
ON_FD(fallocate, "allocate", (int fd, int mode, off_t at, off_t size), (fd, mode, at, size), (void)0)
ON_FD(fallocate64, "allocate", (int fd, int mode, off64_t at, off64_t size), (fd, mode, at, size), (void)0)
ON_FD(ftruncate, "truncate", (int fd, off_t size), (fd, size), (void)0)
ON_FD(ftruncate64, "truncate", (int fd, off64_t size), (fd, size), (void)0)

/* These give the error and leave errno alone. */
#define ALLOCATE(symbol, offset)                                            \
    int symbol(int fd, offset at, offset size) {                            \
        REAL(int, #symbol, (int, offset, offset));                          \
        int error = is_ours_fd(fd) ? fault("allocate") : 0;                 \
        return error && !is_short() ? error : real(fd, at, size);           \
    }
ALLOCATE(posix_fallocate, off_t)
ALLOCATE(posix_fallocate64, off64_t)

int rename(const char *from, const char *to) {
    REAL(int, "rename", (const char *, const char *));
    FAIL_IF(is_ours(from) || is_ours(to), "rename");
    return real(from, to);
}

int link(const char *from, const char *to) {
    REAL(int, "link", (const char *, const char *));
    FAIL_IF(is_ours(from) || is_ours(to), "link");
    return real(from, to);
}

int linkat(int from_at, const char *from, int to_at, const char *to, int flags) {
    REAL(int, "linkat", (int, const char *, int, const char *, int));
    FAIL_IF(is_ours(from) || is_ours(to), "link");
    return real(from_at, from, to_at, to, flags);
}

int unlink(const char *path) {
    REAL(int, "unlink", (const char *));
    FAIL_IF(is_ours(path), "remove");
    return real(path);
}

int unlinkat(int at, const char *path, int flags) {
    REAL(int, "unlinkat", (int, const char *, int));
    FAIL_IF(is_ours(path), "remove");
    return real(at, path, flags);
}
