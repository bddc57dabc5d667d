/* Records what a program does to the files below CRASH_ROOT, in order, in the file CRASH_LOG. LD_PRELOAD loads it.
 * A record is a line, "op inode offset length path", and then `length` bytes.
 * Without CRASH_LOG, it kills the program instead, when it has renamed, synced and removed `crash_after` times. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static FILE *records;
long crash_after;
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int inside(const char *path) {
    const char *root = getenv("CRASH_ROOT");
    if (!root || strncmp(path, root, strlen(root))) return 0;
    return path[strlen(root)] == 0 || path[strlen(root)] == '/';
}

static const char *absolute(const char *path, char *buffer) {
    if (path[0] == '/') return path;
    if (!getcwd(buffer, PATH_MAX)) return path;
    strcat(strcat(buffer, "/"), path);
    return buffer;
}

static void record(const char *op, ino_t inode, off_t offset, size_t length, const char *path, const void *data) {
    if (!getenv("CRASH_LOG")) {
        int counts = op[0] == 's' || op[0] == 'u' || !strcmp(op, "rename");
        if (counts && --crash_after == 0) kill(getpid(), SIGKILL);
        return;
    }
    if (!records) {
        int handle = REAL(open)(getenv("CRASH_LOG"), O_WRONLY | O_CREAT | O_APPEND, 0600);
        records = fdopen(handle, "ab");
    }
    fprintf(records, "%s %llu %lld %zu %s\n", op, (unsigned long long)inode, (long long)offset, length, path);
    if (length) fwrite(data, 1, length, records);
    fflush(records);
}

/* Whether an open file is one of ours; its path and status. */
static int ours(int handle, char *path, struct stat *found) {
    char name[64];
    snprintf(name, sizeof name, "/proc/self/fd/%d", handle);
    ssize_t n = readlink(name, path, PATH_MAX - 1);
    if (n < 0) return 0;
    path[n] = 0;
    return inside(path) && !fstat(handle, found);
}

static int opened(int (*real)(const char *, int, ...), const char *path, int flags, mode_t mode) {
    char buffer[PATH_MAX];
    struct stat found;
    path = absolute(path, buffer);
    if (!inside(path)) return real(path, flags, mode);
    pthread_mutex_lock(&lock);
    int is_new = (flags & O_CREAT) && stat(path, &found);
    int handle = real(path, flags, mode);
    if (handle >= 0 && (is_new || (flags & O_TRUNC)) && !fstat(handle, &found))
        record(is_new ? "create" : "truncate", found.st_ino, 0, 0, path, 0);
    pthread_mutex_unlock(&lock);
    return handle;
}

static mode_t mode_of(int flags, va_list rest) { return flags & O_CREAT ? va_arg(rest, mode_t) : 0; }

#define OPEN(name)                                       \
    int name(const char *path, int flags, ...) {         \
        va_list rest;                                    \
        va_start(rest, flags);                           \
        mode_t mode = mode_of(flags, rest);              \
        va_end(rest);                                    \
        return opened(REAL(name), path, flags, mode);    \
    }
OPEN(open)
OPEN(open64)

static ssize_t wrote(int handle, const void *data, ssize_t done, off_t offset) {
    char path[PATH_MAX];
    struct stat found;
    if (done > 0 && ours(handle, path, &found)) record("write", found.st_ino, offset, done, path, data);
    return done;
}

ssize_t write(int handle, const void *data, size_t n) {
    pthread_mutex_lock(&lock);
    ssize_t done = REAL(write)(handle, data, n);
    int error = errno; /* which a pipe, that has no place to seek, would replace */
    off_t end = lseek(handle, 0, SEEK_CUR);
    wrote(handle, data, done, end < 0 ? 0 : end - done);
    errno = error;
    pthread_mutex_unlock(&lock);
    return done;
}

#define PWRITE(name, offset_t)                                                  \
    ssize_t name(int handle, const void *data, size_t n, offset_t offset) {     \
        pthread_mutex_lock(&lock);                                              \
        ssize_t done = wrote(handle, data, REAL(name)(handle, data, n, offset), offset); \
        pthread_mutex_unlock(&lock);                                            \
        return done;                                                            \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

#define ON_HANDLE(name, arguments, passed, op, offset)                          \
    int name arguments {                                                        \
        char path[PATH_MAX];                                                    \
        struct stat found;                                                      \
        pthread_mutex_lock(&lock);                                              \
        int failed = REAL(name) passed;                                         \
        if (!failed && ours(handle, path, &found)) record(op, found.st_ino, offset, 0, path, 0); \
        pthread_mutex_unlock(&lock);                                            \
        return failed;                                                          \
    }
ON_HANDLE(fsync, (int handle), (handle), S_ISDIR(found.st_mode) ? "syncdir" : "sync", 0)
ON_HANDLE(fdatasync, (int handle), (handle), S_ISDIR(found.st_mode) ? "syncdir" : "sync", 0)
ON_HANDLE(ftruncate, (int handle, off_t size), (handle, size), "truncate", size)
ON_HANDLE(ftruncate64, (int handle, off64_t size), (handle, size), "truncate", size)

#define ON_PATH(name, arguments, passed, op)                                    \
    int name arguments {                                                        \
        char buffer[PATH_MAX];                                                  \
        pthread_mutex_lock(&lock);                                              \
        int failed = REAL(name) passed;                                         \
        const char *where = absolute(path, buffer);                             \
        if (!failed && inside(where)) record(op, 0, 0, 0, where, 0);            \
        pthread_mutex_unlock(&lock);                                            \
        return failed;                                                          \
    }
ON_PATH(unlink, (const char *path), (path), "unlink")
ON_PATH(rmdir, (const char *path), (path), "rmdir")
ON_PATH(mkdir, (const char *path, mode_t mode), (path, mode), "mkdir")

/* shutil.rmtree removes by folders that it has opened. */
int unlinkat(int folder, const char *path, int flags) {
    char where[2 * PATH_MAX];
    struct stat found;
    if (folder == AT_FDCWD) return flags & AT_REMOVEDIR ? rmdir(path) : unlink(path);
    pthread_mutex_lock(&lock);
    int failed = REAL(unlinkat)(folder, path, flags);
    if (!failed && ours(folder, where, &found)) {
        strcat(strcat(where, "/"), path);
        record(flags & AT_REMOVEDIR ? "rmdir" : "unlink", 0, 0, 0, where, 0);
    }
    pthread_mutex_unlock(&lock);
    return failed;
}

int truncate(const char *path, off_t size) {
    struct stat found;
    char buffer[PATH_MAX];
    pthread_mutex_lock(&lock);
    int failed = REAL(truncate)(path, size);
    path = absolute(path, buffer);
    if (!failed && inside(path) && !stat(path, &found)) record("truncate", found.st_ino, size, 0, path, 0);
    pthread_mutex_unlock(&lock);
    return failed;
}
int truncate64(const char *path, off64_t size) { return truncate(path, size); }

int rename(const char *from, const char *to) {
    char first[PATH_MAX], second[PATH_MAX];
    pthread_mutex_lock(&lock);
    int failed = REAL(rename)(from, to);
    from = absolute(from, first), to = absolute(to, second);
    if (!failed && inside(to)) record("rename", 0, 0, strlen(to), from, to);
    pthread_mutex_unlock(&lock);
    return failed;
}
