/* Moves the wall clock of one process, and nothing else: LD_PRELOAD it, and name a file in WALL_CLOCK_FILE.

   The file holds one signed 64-bit number in this machine's byte order: by how many milliseconds the wall clock is
   ahead. The file is mapped, so a write of the number steps the clock of a running process. CLOCK_MONOTONIC,
   CLOCK_BOOTTIME and every wait are the machine's own. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *ahead_ms;

__attribute__((constructor)) static void map_file(void)
{
    const char *path = getenv("WALL_CLOCK_FILE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *found = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *ahead_ms, PROT_READ, MAP_SHARED, file, 0);

    if (found == MAP_FAILED)
        abort(); /* a test that moves no clock must not pass */
    close(file);
    ahead_ms = found;
}

int clock_gettime(clockid_t clock, struct timespec *at)
{
    int failed = (int)syscall(SYS_clock_gettime, clock, at);

    if (!failed && ahead_ms && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t ns = at->tv_nsec + *ahead_ms % 1000 * 1000000;

        at->tv_sec += *ahead_ms / 1000 + (ns >= 1000000000) - (ns < 0);
        at->tv_nsec = (ns + 1000000000) % 1000000000;
    }
    return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone)
{
    struct timespec now;

    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    if (at)
        *at = now.tv_sec;
    return now.tv_sec;
}
