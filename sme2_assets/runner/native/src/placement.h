// Where the threads of a run may execute: on which CPUs (Linux, Android), with which quality of service (macOS).
// One file per platform: placement_<platform>.cpp.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sme2 {

// Both are for the calling thread. Threads it starts afterwards inherit the CPUs, not the quality of service.
// They throw a usage failure where the system has no such thing, or does not grant it.
void restrict_to_cpus(const std::vector<int64_t>& cpus);
void request_qos(const std::string& name);

// What the system says of the calling thread; none where it has no such thing.
std::optional<std::vector<int64_t>> allowed_cpus();
std::optional<std::string> current_qos();

// "0-3,7" of ascending numbers.
std::string cpu_list_text(const std::vector<int64_t>& cpus);

}  // namespace sme2
