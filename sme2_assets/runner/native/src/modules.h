// The program and the libraries of this process: which files they are, and where they are mapped. With that, names
// of functions can be found later and elsewhere (sme2_assets/runner/recording.py). modules_<platform>.cpp has it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sme2 {

struct Segment {
  uint64_t start = 0;
  uint64_t end = 0;
  bool readable = false;
};

struct Module {
  std::string path;                     // as the loader tells it; the program's as it was started
  std::optional<std::string> build_id;  // hexadecimal
  std::optional<std::string> image;     // its bytes, hexadecimal, where no file has them: the kernel's own part
  uint64_t base = 0;                    // where its first byte is mapped
  std::vector<Segment> segments;
};

std::vector<Module> loaded_modules();

// A line with the address of clock_gettime, by which delegates time their operators; then one for each module:
// first and last address, build id or -, path.
std::string modules_text();

// Where an address of this process is.
struct Place {
  std::optional<size_t> module;  // index in the list
  uint64_t address = 0;          // from the module's base; without a module the address itself
  std::optional<uint32_t> word;  // the instruction, on AArch64
};

Place place_of(const std::vector<Module>& modules, uint64_t pc);

// Bytes as hexadecimal digits.
std::string hexadecimal(const void* data, size_t size);

}  // namespace sme2
