/* The floor under a message that comes alone: client, relay, worker (append, fdatasync), relay, client, over unix
 * sockets, one system call after the other. It is what the way from a client to the frontend, to the shard and
 * back costs with nothing done on it.
 *
 *     hop SENDERS COUNT RATE DURABLE FOLDER
 *
 * SENDERS clients with one message of 400 bytes under way each, COUNT messages in all, RATE per second in all (0: as
 * fast as answers come). DURABLE 1: the worker syncs what it has read before it answers, as a group commit does.
 * Prints JSON: CPU of relay and worker per message and p50, p99 of the way, microseconds; messages per second;
 * context switches per message. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SIZE 400
#define UNDER_WAY_MAX 64
#define EVENTS 64

static char buffer[1 << 20];

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void write_all(int fd, const char *from, size_t length) {
    while (length) {
        ssize_t written = write(fd, from, length);
        if (written <= 0)
            _exit(1);
        from += written;
        length -= written;
    }
}

static int read_all(int fd, char *to, size_t length) {
    while (length) {
        ssize_t got = read(fd, to, length);
        if (got <= 0)
            return 0;
        to += got;
        length -= got;
    }
    return 1;
}

/* Reads what has arrived; returns the number of whole messages in the buffer, -1 at the end of the connection. */
static int read_messages(int fd, size_t *have) {
    ssize_t got = read(fd, buffer + *have, sizeof buffer - *have);
    if (got <= 0)
        return -1;
    *have += got;
    return *have / SIZE;
}

static void forget(size_t *have, int messages) {
    *have -= (size_t)messages * SIZE;
    memmove(buffer, buffer + (size_t)messages * SIZE, *have);
}

static void worker(int relay, int durable, const char *folder) {
    char path[4096];
    snprintf(path, sizeof path, "%s/hop.journal", folder);
    int journal = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600), messages;
    size_t have = 0;
    if (journal < 0)
        _exit(1);
    while ((messages = read_messages(relay, &have)) >= 0) {
        if (!messages)
            continue;
        if (durable) {
            write_all(journal, buffer, (size_t)messages * SIZE);
            fdatasync(journal);
        }
        write_all(relay, buffer, (size_t)messages * SIZE);
        forget(&have, messages);
    }
    unlink(path);
    _exit(0);
}

static void watch(int poll, int fd, unsigned int number) {
    struct epoll_event event = {EPOLLIN, {.u32 = number}};
    epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event);
}

static void relay(int senders, int (*clients)[2], int to_worker) {
    int poll = epoll_create1(0), messages;
    struct epoll_event events[EVENTS];
    char message[SIZE];
    size_t have = 0;
    watch(poll, to_worker, senders);
    for (int i = 0; i < senders; i++)
        watch(poll, clients[i][1], i);
    for (;;) {
        int count = epoll_wait(poll, events, EVENTS, -1);
        for (int i = 0; i < count; i++) {
            int from = events[i].data.u32;
            if (from != senders) {
                if (!read_all(clients[from][1], message, SIZE))
                    _exit(0);
                write_all(to_worker, message, SIZE);
                continue;
            }
            if ((messages = read_messages(to_worker, &have)) < 0)
                _exit(0);
            for (int each = 0; each < messages; each++) {
                int to;
                memcpy(&to, buffer + each * SIZE, sizeof to);
                write_all(clients[to][1], buffer + each * SIZE, SIZE);
            }
            forget(&have, messages);
        }
    }
}

static int by_length(const void *one, const void *other) {
    double difference = *(const double *)one - *(const double *)other;
    return difference < 0 ? -1 : difference > 0;
}

int main(int argc, char **argv) {
    if (argc != 6) {
        fprintf(stderr, "usage: hop SENDERS COUNT RATE DURABLE FOLDER\n");
        return 2;
    }
    int senders = atoi(argv[1]), count = atoi(argv[2]), durable = atoi(argv[4]), inside[2];
    double rate = atof(argv[3]);
    int(*clients)[2] = calloc(senders, sizeof *clients);
    for (int i = 0; i < senders; i++)
        socketpair(AF_UNIX, SOCK_STREAM, 0, clients[i]);
    socketpair(AF_UNIX, SOCK_STREAM, 0, inside);
    if (!fork()) {
        for (int i = 0; i < senders; i++) {
            close(clients[i][0]);
            close(clients[i][1]);
        }
        close(inside[0]);
        worker(inside[1], durable, argv[5]);
    }
    if (!fork()) {
        for (int i = 0; i < senders; i++)
            close(clients[i][0]);
        close(inside[1]);
        relay(senders, clients, inside[0]);
    }
    close(inside[0]);
    close(inside[1]);
    int poll = epoll_create1(0), sent = 0, back = 0;
    for (int i = 0; i < senders; i++) {
        close(clients[i][1]);
        watch(poll, clients[i][0], i);
    }
    struct epoll_event events[EVENTS];
    double *sent_at = calloc(senders, sizeof *sent_at), *took = calloc(count, sizeof *took), began = now();
    char message[SIZE] = {0};
    while (back < count) {
        /* The next message: at once for each client that has its answer, or when it is due. */
        double due = rate ? began + sent / rate - now() : 0;
        int may_send = sent < count && sent - back < (rate ? UNDER_WAY_MAX : senders);
        if (may_send && due <= 0) {
            int i = sent % senders;
            if (!rate && sent >= senders) {
                memcpy(&i, message, sizeof i); /* The client whose answer was read last. */
            } else {
                memcpy(message, &i, sizeof i);
            }
            sent_at[i] = now();
            write_all(clients[i][0], message, SIZE);
            sent++;
            continue;
        }
        struct timespec rest = {due, (due - (long)due) * 1e9};
        int arrived = epoll_pwait2(poll, events, rate ? EVENTS : 1, may_send ? &rest : NULL, NULL);
        for (int each = 0; each < arrived; each++) {
            int i = events[each].data.u32;
            if (!read_all(clients[i][0], message, SIZE))
                return 1;
            took[back++] = now() - sent_at[i];
        }
    }
    double seconds = now() - began;
    for (int i = 0; i < senders; i++)
        close(clients[i][0]);
    while (wait(NULL) > 0)
        ;
    struct rusage used;
    getrusage(RUSAGE_CHILDREN, &used);
    double cpu = used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
    qsort(took, count, sizeof *took, by_length);
    printf("{\"cpu_us\": %.1f, \"p50_us\": %.0f, \"p99_us\": %.0f, \"per_s\": %.0f, \"switches\": %.2f}\n",
           cpu / count * 1e6, took[count / 2] * 1e6, took[count * 99 / 100] * 1e6, count / seconds,
           (used.ru_nvcsw + used.ru_nivcsw) / (double)count);
    return 0;
}
