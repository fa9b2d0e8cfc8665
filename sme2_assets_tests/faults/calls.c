// Fails one of the calls by which this process changes files below a folder: for LD_PRELOAD, so that DuckDB's
// calls count like Python's. `plan` says which one and how, `planned` how many there were and which one failed.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

// BROKEN: the n-th call fails. FULL: the n-th that needs room on the disk fails, and all after it. KILLED: the
// process dies instead of the n-th call, or in the middle of it if it writes.
enum { NOTHING, BROKEN, FULL, KILLED };
static char folder[PATH_MAX], failed[PATH_MAX + 32];
static int kind = NOTHING;
static long number, count;

void plan(const char *where, int how, long which) {
  snprintf(folder, sizeof folder, "%s", where);
  failed[0] = 0;
  count = 0;
  number = which;
  kind = how;
}

long planned(char *what, size_t size) {
  snprintf(what, size, "%s", failed);
  return count;
}

static int is_below(int directory, const char *path, char *found) {
  if (folder[0] == 0) return 0;
  if (path != NULL && path[0] == '/') {
    snprintf(found, PATH_MAX, "%s", path);
  } else {
    char link[64];
    if (directory == AT_FDCWD) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
    ssize_t length = readlink(link, found, PATH_MAX - 1);
    if (length < 0) return 0;
    found[length] = 0;
    if (path != NULL) {
      strncat(found, "/", PATH_MAX - strlen(found) - 1);
      strncat(found, path, PATH_MAX - strlen(found) - 1);
    }
  }
  return strncmp(found, folder, strlen(folder)) == 0;
}

// Whether the call is to fail; `middle` writes half of what a process that dies was about to write.
static int fails(const char *name, int directory, const char *path, int needs_room, void (*middle)(void *), void *of) {
  char found[PATH_MAX];
  if (kind == NOTHING || !is_below(directory, path, found) || (kind == FULL && !needs_room)) return 0;
  long mine = __atomic_add_fetch(&count, 1, __ATOMIC_SEQ_CST);
  if (mine < number || (mine > number && kind != FULL) || number == 0) return 0;
  if (mine == number) snprintf(failed, sizeof failed, "%s %s", name, found);
  if (kind == KILLED) {
    if (middle != NULL) middle(of);
    kill(getpid(), SIGKILL);
  }
  errno = kind == FULL ? ENOSPC : EIO;
  return 1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

struct piece { int file; const void *data; size_t size; off_t at; };

static void half(void *given) {
  struct piece *piece = given;
  if (piece->at < 0) REAL(write)(piece->file, piece->data, piece->size / 2);
  else REAL(pwrite)(piece->file, piece->data, piece->size / 2, piece->at);
}

ssize_t write(int file, const void *data, size_t size) {
  struct piece piece = {file, data, size, -1};
  return fails("write", file, NULL, 1, half, &piece) ? -1 : REAL(write)(file, data, size);
}

ssize_t pwrite(int file, const void *data, size_t size, off_t at) {
  struct piece piece = {file, data, size, at};
  return fails("pwrite", file, NULL, 1, half, &piece) ? -1 : REAL(pwrite)(file, data, size, at);
}

ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) { return pwrite(file, data, size, at); }

ssize_t sendfile(int to, int from, off_t *at, size_t size) {
  return fails("sendfile", to, NULL, 1, NULL, NULL) ? -1 : REAL(sendfile)(to, from, at, size);
}

ssize_t sendfile64(int to, int from, off64_t *at, size_t size) { return sendfile(to, from, at, size); }

ssize_t copy_file_range(int from, off64_t *at, int to, off64_t *there, size_t size, unsigned flags) {
  if (fails("copy_file_range", to, NULL, 1, NULL, NULL)) return -1;
  return REAL(copy_file_range)(from, at, to, there, size, flags);
}

// What would fail anyway does not count: folders that are there or have no parent, files that are not there.
static int is_there(int at, const char *path) {
  struct stat facts;
  return fstatat(at, path, &facts, AT_SYMLINK_NOFOLLOW) == 0;
}

static int opens(int directory, const char *path, int flags, mode_t mode) {
  int is_new = (flags & O_CREAT) && !is_there(directory, path);
  if (is_new && fails("open", directory, path, 1, NULL, NULL)) return -1;
  return REAL(openat)(directory, path, flags, mode);
}

#define MODE(flags, mode)                 \
  mode_t mode = 0;                        \
  if (flags & (O_CREAT | __O_TMPFILE)) {  \
    va_list more;                         \
    va_start(more, flags);                \
    mode = va_arg(more, mode_t);          \
    va_end(more);                         \
  }

int open(const char *path, int flags, ...) { MODE(flags, mode) return opens(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags, mode) return opens(AT_FDCWD, path, flags, mode); }
int openat(int at, const char *path, int flags, ...) { MODE(flags, mode) return opens(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE(flags, mode) return opens(at, path, flags, mode); }

int fsync(int file) { return fails("fsync", file, NULL, 0, NULL, NULL) ? -1 : REAL(fsync)(file); }
int fdatasync(int file) { return fails("fdatasync", file, NULL, 0, NULL, NULL) ? -1 : REAL(fdatasync)(file); }

int ftruncate(int file, off_t size) {
  return fails("ftruncate", file, NULL, 1, NULL, NULL) ? -1 : REAL(ftruncate)(file, size);
}
int ftruncate64(int file, off64_t size) { return ftruncate(file, size); }

int rename(const char *from, const char *to) {
  return fails("rename", AT_FDCWD, to, 0, NULL, NULL) ? -1 : REAL(rename)(from, to);
}
int renameat(int at, const char *from, int there, const char *to) {
  return fails("rename", there, to, 0, NULL, NULL) ? -1 : REAL(renameat)(at, from, there, to);
}
int link(const char *from, const char *to) {
  return fails("link", AT_FDCWD, to, 1, NULL, NULL) ? -1 : REAL(link)(from, to);
}
int linkat(int at, const char *from, int there, const char *to, int flags) {
  return fails("link", there, to, 1, NULL, NULL) ? -1 : REAL(linkat)(at, from, there, to, flags);
}
int symlink(const char *to, const char *path) {
  return fails("symlink", AT_FDCWD, path, 1, NULL, NULL) ? -1 : REAL(symlink)(to, path);
}

int mkdir(const char *path, mode_t mode) {
  char parent[PATH_MAX];
  snprintf(parent, sizeof parent, "%s", path);
  char *last = strrchr(parent, '/');
  if (last != NULL) *last = 0;
  int can_be = !is_there(AT_FDCWD, path) && is_there(AT_FDCWD, parent);
  return can_be && fails("mkdir", AT_FDCWD, path, 1, NULL, NULL) ? -1 : REAL(mkdir)(path, mode);
}
int unlink(const char *path) {
  if (is_there(AT_FDCWD, path) && fails("unlink", AT_FDCWD, path, 0, NULL, NULL)) return -1;
  return REAL(unlink)(path);
}
int unlinkat(int at, const char *path, int flags) {
  return is_there(at, path) && fails("unlink", at, path, 0, NULL, NULL) ? -1 : REAL(unlinkat)(at, path, flags);
}
int rmdir(const char *path) { return fails("rmdir", AT_FDCWD, path, 0, NULL, NULL) ? -1 : REAL(rmdir)(path); }
