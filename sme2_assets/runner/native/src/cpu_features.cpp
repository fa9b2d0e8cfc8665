#include "cpu_features.h"

#include <algorithm>
#include <cstdlib>

#include "failure.h"
#include "mask.h"

namespace sme2 {
namespace {

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool sme2_asked_for() {
  const char* value = std::getenv(kMaskVariable);
  const std::string state = value == nullptr ? "" : value;
  if (state != "" && state != "on" && state != "off") {
    throw Failure(ExitCode::usage, std::string("the variable ") + kMaskVariable + " is '" + state + "'",
                  "set it to on or off, or unset it; see sme2_runner --help");
  }
  return state != "off";
}

}  // namespace

CpuInfo read_cpu_info() {
  CpuInfo cpu;
  cpu.sme2_on = sme2_asked_for();
  cpu.platform = read_platform_features();
  for (const std::string& name : cpu.platform.seen) {
    if (!contains(cpu.platform.visible, name)) {
      cpu.masked.push_back(name);
    }
  }
  cpu.sme2_usable = contains(cpu.platform.visible, "sme2");
  // A baseline that still sees SME would be believed: stop instead.
  const auto is_sme = [](const std::string& name) { return name.rfind("sme", 0) == 0; };
  if (!cpu.sme2_on && std::any_of(cpu.platform.visible.begin(), cpu.platform.visible.end(), is_sme)) {
    throw Failure(ExitCode::inference, "SME could not be masked on this system",
                  "check that nothing else interposes getauxval (LD_PRELOAD, DYLD_INSERT_LIBRARIES)");
  }
  return cpu;
}

void write_json(JsonWriter& json, const CpuInfo& cpu) {
  json.begin_object();
  json.key("arch").text(cpu.platform.arch);
  json.key("features_seen").texts(cpu.platform.seen);
  json.key("features_masked").texts(cpu.masked);
  json.key("sme2").text(cpu.sme2_on ? "on" : "off");
  json.key("sme2_usable").boolean(cpu.sme2_usable);
  json.key("sme_vector_bits").maybe(cpu.platform.sme_vector_bits);
  json.key("sve_vector_bits").maybe(cpu.platform.sve_vector_bits);
  json.end_object();
}

}  // namespace sme2
