#include "conditions.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <chrono>

namespace sme2 {
namespace {

using Clock = std::chrono::steady_clock;

// Some x86 kernels sleep 10 ms per idle CPU asked for its frequency, and some sensors hang on slow buses.
constexpr auto kBudget = std::chrono::milliseconds(10);
constexpr int kMostZones = 256;
constexpr size_t kMostSensors = 16;
// A broken sensor gives values that no chip has.
constexpr int64_t kLeastMillidegrees = -40'000;
constexpr int64_t kMostMillidegrees = 150'000;

std::string read_text(int file) {
  char text[64];
  const ssize_t size = ::pread(file, text, sizeof(text), 0);
  return size > 0 ? std::string(text, static_cast<size_t>(size)) : std::string();
}

std::optional<int64_t> read_number(int file) {
  const std::string text = read_text(file);
  int64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && stop != text.data() ? std::optional<int64_t>(value) : std::nullopt;
}

int open_file(const std::string& path) { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC); }

// Zones of batteries, modems and chargers say little of a CPU, and reading them may be slow.
bool is_cpu_zone(std::string type) {
  std::transform(type.begin(), type.end(), type.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const char* part : {"cpu", "soc", "x86_pkg", "big", "mid", "little", "apc", "cluster"}) {
    if (type.find(part) != std::string::npos) {
      return true;
    }
  }
  return false;
}

}  // namespace

ConditionsReader::ConditionsReader(const std::optional<std::vector<int64_t>>& cpus) {
  for (const int64_t cpu : cpus.value_or(std::vector<int64_t>())) {
    const int file = open_file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/cpufreq/scaling_cur_freq");
    if (file >= 0) {
      frequency_files_.emplace_back(cpu, file);
    }
  }
  for (int zone = 0; zone < kMostZones && temperature_files_.size() < kMostSensors; ++zone) {
    const std::string folder = "/sys/class/thermal/thermal_zone" + std::to_string(zone);
    const int type_file = open_file(folder + "/type");
    if (type_file < 0) {
      continue;
    }
    const std::string type = read_text(type_file);
    ::close(type_file);
    const int file = is_cpu_zone(type) ? open_file(folder + "/temp") : -1;
    if (file >= 0) {
      temperature_files_.push_back(file);
    }
  }
}

ConditionsReader::~ConditionsReader() {
  for (const auto& [cpu, file] : frequency_files_) {
    ::close(file);
  }
  for (const int file : temperature_files_) {
    ::close(file);
  }
}

Conditions ConditionsReader::read(const std::string& at) const {
  const auto deadline = Clock::now() + kBudget;
  Conditions conditions;
  conditions.at = at;
  const int cpu = ::sched_getcpu();
  if (cpu >= 0) {
    conditions.cpu = cpu;
  }
  for (const auto& [number, file] : frequency_files_) {
    const auto khz = read_number(file);
    if (khz && *khz > 0) {
      conditions.cpu_khz.emplace_back(number, *khz);
    }
    if (Clock::now() > deadline) {
      return conditions;
    }
  }
  for (const int file : temperature_files_) {
    const auto millidegrees = read_number(file);
    if (millidegrees && *millidegrees >= kLeastMillidegrees && *millidegrees <= kMostMillidegrees) {
      const double celsius = static_cast<double>(*millidegrees) / 1000;
      conditions.temperature_c = std::max(conditions.temperature_c.value_or(celsius), celsius);
    }
    if (Clock::now() > deadline) {
      break;
    }
  }
  return conditions;
}

}  // namespace sme2
