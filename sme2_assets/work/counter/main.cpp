// counter MODULES COUNTS < LOG
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>

#include <unistd.h>

#include "counter.h"

namespace {

// A pipe that holds less than this is left to fill for a moment: the emulator writes line by line, and to be woken for
// each of its lines takes both processes twice as long.
constexpr ssize_t kWorthReading = 1 << 15;
constexpr std::chrono::microseconds kMoment(500);

// Line by line from standard input; a line may be of any length.
void read_log(sme2::Counter& counter) {
  std::string text;
  std::string buffer(1 << 18, '\0');
  for (;;) {
    const ssize_t size = ::read(STDIN_FILENO, &buffer[0], buffer.size());
    if (size < 0 && errno == EINTR) {
      continue;
    }
    if (size < 0) {
      throw std::runtime_error(std::string("the emulator's log cannot be read: ") + std::strerror(errno));
    }
    if (size == 0) {
      break;
    }
    if (size < kWorthReading) {
      std::this_thread::sleep_for(kMoment);
    }
    text.append(buffer, 0, static_cast<size_t>(size));
    size_t begin = 0;
    for (size_t end = 0; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
      counter.read(std::string_view(text).substr(begin, end - begin));
    }
    text.erase(0, begin);
  }
  if (!text.empty()) {
    throw std::runtime_error("the emulator's log ends within a line");
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 3) {
      throw std::runtime_error("usage: counter MODULES COUNTS < LOG");
    }
    std::ofstream out(argv[2]);
    sme2::Counter counter(
        [&] {
          std::ifstream modules(argv[1]);
          return sme2::read_layout(modules);
        },
        out);
    read_log(counter);
    counter.finish();
    out.close();
    if (!out) {
      throw std::runtime_error(std::string(argv[2]) + " cannot be written");
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "counter: %s\n", error.what());
    return 1;
  }
  return 0;
}
