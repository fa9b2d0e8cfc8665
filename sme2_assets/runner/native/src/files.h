// Files that appear whole or not at all.
#pragma once

#include <cstddef>
#include <string>

namespace sme2 {

// Writes to a temporary name beside `path`, syncs, renames.
void write_file(const std::string& path, const void* data, size_t size);

// A file of an earlier run must not pass for one of this run.
void remove_stale_file(const std::string& path);

// Fails early, before minutes of inferences, if `path` could not be written at the end.
void check_writable(const std::string& path);

void make_directory(const std::string& path);

std::string base_name(const std::string& path);

// True when both names lead to one existing file, or are spelt alike.
bool same_file(const std::string& a, const std::string& b);

}  // namespace sme2
