#include "placement.h"

#include <sched.h>

#include <cerrno>
#include <cstring>

#include "failure.h"

namespace sme2 {

std::optional<std::vector<int64_t>> allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) {
    return std::nullopt;
  }
  std::vector<int64_t> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) {
      cpus.push_back(cpu);
    }
  }
  return cpus;
}

void restrict_to_cpus(const std::vector<int64_t>& cpus) {
  const auto before = allowed_cpus();
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int64_t cpu : cpus) {
    CPU_SET(static_cast<size_t>(cpu), &set);
  }
  const int error = ::sched_setaffinity(0, sizeof(set), &set) == 0 ? 0 : errno;
  // The kernel leaves out offline CPUs, and those that a cpuset forbids, silently.
  if (error != 0 || allowed_cpus() != cpus) {
    throw Failure(ExitCode::usage,
                  "CPUs " + cpu_list_text(cpus) + " are not all granted" +
                      (error != 0 ? std::string(" (") + std::strerror(error) + ")" : std::string()),
                  before ? "choose among " + cpu_list_text(*before) + ", and only CPUs that are online"
                         : std::string("leave --cpus out"));
  }
}

void request_qos(const std::string& name) {
  throw Failure(ExitCode::usage, "--qos " + name + " is a matter of macOS, and this is not macOS",
                "leave it out; --cpus chooses CPUs here");
}

std::optional<std::string> current_qos() { return std::nullopt; }

}  // namespace sme2
