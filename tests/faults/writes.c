/* Logs what a process writes below one folder, so that a test can make the disk of a power cut: LD_PRELOAD it.

   WRITES_FOLDER is the folder, WRITES_LOG the log, to which several processes append. A record is

     struct { uint64_t at, size, thread, us; uint32_t path; char kind, pad[3]; }   path: bytes of the path behind it
     path, and for 'w' the size bytes that are written

   us is the wall clock, before the record is appended. Kinds: 'w' write at an offset, 't' truncate to size, 'o' make a
   file, 'u' unlink, 'r' rename and 'l' link (path, 0 byte, new path), 'b' and 'e' begin and end of a sync. A write is
   logged before it is done, a sync once it begins and once it has ended: all records before the begin of a sync that has
   ended are on the disk. Writes by stdio are not seen: PostgreSQL makes files by it that it can do without. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct record {
    uint64_t at, size, thread, us;
    uint32_t path;
    char kind, pad[3];
};

static int log_fd = -1;
static char folder[PATH_MAX];
static size_t folder_length;

__attribute__((constructor)) static void open_log(void)
{
    const char *path = getenv("WRITES_LOG"), *below = getenv("WRITES_FOLDER");
    int found;

    if (!path || !below)
        abort(); /* a test that logs nothing must not pass */
    snprintf(folder, sizeof folder, "%s", below);
    folder_length = strlen(folder);
    found = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (found < 0)
        abort();
    log_fd = (int)syscall(SYS_fcntl, found, F_DUPFD_CLOEXEC, 1000); /* out of the way of whoever closes low ones */
    syscall(SYS_close, found);
    if (log_fd < 0)
        abort();
}

static int is_below(const char *path)
{
    return !strncmp(path, folder, folder_length) && (!path[folder_length] || path[folder_length] == '/');
}

/* The absolute form of a path: a server of PostgreSQL names files from its folder. */
static const char *whole(const char *path, char *place)
{
    size_t length;

    if (path[0] == '/' || !getcwd(place, PATH_MAX))
        return path;
    length = strlen(place);
    snprintf(place + length, PATH_MAX - length, "/%s", strncmp(path, "./", 2) ? path : path + 2);
    return place;
}

static uint64_t now_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static void append(char kind, const char *path, size_t length, uint64_t at, const void *data, uint64_t size)
{
    struct record record = {at, size, (uint64_t)syscall(SYS_gettid), now_us(), (uint32_t)length, kind, {0}};
    struct iovec parts[] = {{&record, sizeof record}, {(void *)path, length}, {(void *)data, data ? size : 0}};
    ssize_t wanted = (ssize_t)(sizeof record + length + (data ? size : 0));

    if (log_fd >= 0 && syscall(SYS_writev, log_fd, parts, 3) != wanted)
        abort();
}

/* The path of an open file below the folder; 0 for any other. */
static size_t path_of(int fd, char *path)
{
    char link[32];
    ssize_t length;

    if (log_fd < 0)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    length = readlink(link, path, PATH_MAX - 1);
    if (length <= 0)
        return 0;
    path[length] = 0;
    return is_below(path) ? (size_t)length : 0;
}

static void about(char kind, int fd, uint64_t at, const void *data, uint64_t size)
{
    char path[PATH_MAX];
    size_t length = path_of(fd, path);

    if (length)
        append(kind, path, length, at, data, size);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at)
{
    about('w', fd, (uint64_t)at, data, size);
    return syscall(SYS_pwrite64, fd, data, size, at);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at)
{
    return pwrite64(fd, data, size, at);
}

ssize_t write(int fd, const void *data, size_t size)
{
    char path[PATH_MAX];
    size_t length = fd > 2 ? path_of(fd, path) : 0;

    if (length) {
        off64_t at = fcntl(fd, F_GETFL) & O_APPEND ? lseek64(fd, 0, SEEK_END) : lseek64(fd, 0, SEEK_CUR);

        append('w', path, length, (uint64_t)at, data, size);
    }
    return syscall(SYS_write, fd, data, size);
}

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t at)
{
    ssize_t written, all = 0;

    for (int one = 0; one < count; one++) {
        written = pwrite64(fd, parts[one].iov_base, parts[one].iov_len, at + all);
        if (written < 0)
            return all ? all : written;
        all += written;
        if ((size_t)written < parts[one].iov_len)
            break;
    }
    return all;
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at)
{
    return pwritev64(fd, parts, count, at);
}

int posix_fallocate64(int fd, off64_t at, off64_t size)
{
    struct stat found;

    if (!fstat(fd, &found) && found.st_size < at + size)
        about('t', fd, 0, NULL, (uint64_t)(at + size));
    return syscall(SYS_fallocate, fd, 0, at, size) ? errno : 0;
}

int posix_fallocate(int fd, off_t at, off_t size)
{
    return posix_fallocate64(fd, at, size);
}

int ftruncate64(int fd, off64_t size)
{
    about('t', fd, 0, NULL, (uint64_t)size);
    return (int)syscall(SYS_ftruncate, fd, size);
}

int ftruncate(int fd, off_t size)
{
    return ftruncate64(fd, size);
}

static int synced(int fd, long number)
{
    char path[PATH_MAX];
    size_t length = path_of(fd, path);
    int failed;

    if (length)
        append('b', path, length, 0, NULL, 0);
    failed = (int)syscall(number, fd);
    if (length && !failed)
        append('e', path, length, 0, NULL, 0);
    return failed;
}

int fsync(int fd)
{
    return synced(fd, SYS_fsync);
}

int fdatasync(int fd)
{
    return synced(fd, SYS_fdatasync);
}

static void note(char kind, const char *path, uint64_t size)
{
    char place[PATH_MAX];
    const char *name = whole(path, place);

    if (is_below(name))
        append(kind, name, strlen(name), 0, NULL, size);
}

int truncate64(const char *path, off64_t size)
{
    note('t', path, (uint64_t)size);
    return (int)syscall(SYS_truncate, path, size);
}

int truncate(const char *path, off_t size)
{
    return truncate64(path, size);
}

int unlink(const char *path)
{
    note('u', path, 0);
    return (int)syscall(SYS_unlink, path);
}

static void note_both(char kind, const char *from, const char *to)
{
    char both[2 * PATH_MAX], old_place[PATH_MAX], new_place[PATH_MAX];
    const char *old = whole(from, old_place), *new = whole(to, new_place);
    int length = snprintf(both, sizeof both, "%s%c%s", old, 0, new);

    if (is_below(old) || is_below(new))
        append(kind, both, (size_t)length, 0, NULL, 0);
}

int rename(const char *from, const char *to)
{
    note_both('r', from, to);
    return (int)syscall(SYS_rename, from, to);
}

int link(const char *from, const char *to)
{
    note_both('l', from, to);
    return (int)syscall(SYS_link, from, to);
}

static int opened(int at, const char *path, int flags, mode_t mode)
{
    struct stat found;

    if (flags & (O_CREAT | O_TRUNC)) {
        int exists = !stat(path, &found);

        if (!exists && (flags & O_CREAT))
            note('o', path, 0);
        else if (exists && (flags & O_TRUNC))
            note('t', path, 0);
    }
    return (int)syscall(SYS_openat, at, path, flags, mode);
}

#define OPEN(name, at_parameter, at)                             \
    int name(at_parameter const char *path, int flags, ...)      \
    {                                                            \
        mode_t mode = 0;                                         \
                                                                 \
        if (flags & (O_CREAT | O_TMPFILE)) {                     \
            va_list more;                                        \
                                                                 \
            va_start(more, flags);                               \
            mode = (mode_t)va_arg(more, int);                    \
            va_end(more);                                        \
        }                                                        \
        return opened(at, path, flags, mode);                    \
    }
#define COMMA ,

OPEN(open, , AT_FDCWD)
OPEN(open64, , AT_FDCWD)
OPEN(openat, int at COMMA, at)
OPEN(openat64, int at COMMA, at)
