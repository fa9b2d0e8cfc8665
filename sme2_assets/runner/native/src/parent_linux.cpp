#include "parent.h"

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <string>

#include <sys/prctl.h>
#include <unistd.h>

namespace sme2 {
namespace {

// 0 if the process no longer exists.
long parent_of(long process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string stat;
  std::getline(file, stat);
  // "pid (any name) state parent ..."
  const size_t name_end = stat.rfind(')');
  return name_end == std::string::npos ? 0 : std::strtol(stat.c_str() + name_end + 3, nullptr, 10);
}

// Something in between may have started this process: a shell, or a tracer.
bool descends_from(long ancestor) {
  long process = ::getppid();
  while (process > 1 && process != ancestor) {
    process = parent_of(process);
  }
  return process == ancestor;
}

}  // namespace

void end_with_parent() {
  const char* parent = std::getenv("SME2_RUNNER_PARENT");
  if (parent == nullptr) {
    return;
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // It may have ended before the line above, and then no signal comes.
  if (!descends_from(std::strtol(parent, nullptr, 10))) {
    std::_Exit(128 + SIGKILL);
  }
}

}  // namespace sme2
