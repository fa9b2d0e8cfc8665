#include "files.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include <fcntl.h>
#include <unistd.h>

#include "failure.h"

namespace fs = std::filesystem;

namespace sme2 {
namespace {

Failure write_error(const std::string& path, const std::string& why) {
  return Failure(ExitCode::cannot_write, "cannot write " + path + ": " + why,
                 "check that the folder exists, is writable and has space");
}

bool write_all(int fd, const char* data, size_t size) {
  while (size > 0) {
    const ssize_t written = ::write(fd, data, size);
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written <= 0) {
      return false;
    }
    data += written;
    size -= static_cast<size_t>(written);
  }
  return true;
}

std::string folder_of(const std::string& path) {
  const fs::path folder = fs::path(path).parent_path();
  return folder.empty() ? "." : folder.string();
}

// Makes a rename durable. Best effort: some file systems refuse to sync a folder.
void sync_folder_of(const std::string& path) {
  const int fd = ::open(folder_of(path).c_str(), O_RDONLY | O_CLOEXEC);
  if (fd >= 0) {
    ::fsync(fd);
    ::close(fd);
  }
}

}  // namespace

void write_file(const std::string& path, const void* data, size_t size) {
  const std::string temporary = path + ".tmp." + std::to_string(::getpid());
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) {
    throw write_error(path, std::strerror(errno));
  }
  bool good = write_all(fd, static_cast<const char*>(data), size) && ::fsync(fd) == 0;
  int cause = errno;
  if (::close(fd) != 0 && good) {
    good = false;
    cause = errno;
  }
  if (good && std::rename(temporary.c_str(), path.c_str()) != 0) {
    good = false;
    cause = errno;
  }
  if (!good) {
    ::unlink(temporary.c_str());
    throw write_error(path, std::strerror(cause));
  }
  sync_folder_of(path);
}

void remove_stale_file(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) {
    throw write_error(path, "it is a directory");
  }
  if (::unlink(path.c_str()) != 0 && errno != ENOENT && errno != ENOTDIR) {
    throw write_error(path, std::string("the old file cannot be removed: ") + std::strerror(errno));
  }
}

void check_writable(const std::string& path) {
  if (::access(folder_of(path).c_str(), W_OK | X_OK) != 0) {
    throw write_error(path, std::strerror(errno));
  }
}

void make_directory(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (!fs::is_directory(path)) {
    throw write_error(path, error ? error.message() : "it is not a directory");
  }
}

std::string base_name(const std::string& path) { return fs::path(path).filename().string(); }

bool same_file(const std::string& a, const std::string& b) {
  std::error_code error;
  return a == b || fs::weakly_canonical(a, error) == fs::weakly_canonical(b, error) || fs::equivalent(a, b, error);
}

}  // namespace sme2
