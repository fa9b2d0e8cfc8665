#include "placement.h"

#include "failure.h"

namespace sme2 {

void restrict_to_cpus(const std::vector<int64_t>& cpus) {
  throw Failure(ExitCode::usage, "CPUs " + cpu_list_text(cpus) + " cannot be chosen on this system",
                "leave --cpus out");
}

void request_qos(const std::string& name) {
  throw Failure(ExitCode::usage, "--qos " + name + " is a matter of macOS, and this is not macOS", "leave it out");
}

std::optional<std::vector<int64_t>> allowed_cpus() { return std::nullopt; }

std::optional<std::string> current_qos() { return std::nullopt; }

}  // namespace sme2
