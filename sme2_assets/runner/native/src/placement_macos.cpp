// Written after Apple's documentation of <pthread/qos.h>; never run.
#include "placement.h"

#include <pthread.h>
#include <pthread/qos.h>

#include <cstring>

#include "failure.h"

namespace sme2 {
namespace {

struct QosName {
  const char* name;
  qos_class_t value;
};

// The first four can be asked for; args.cpp knows their names.
constexpr QosName kQosNames[] = {
    {"user-interactive", QOS_CLASS_USER_INTERACTIVE},
    {"user-initiated", QOS_CLASS_USER_INITIATED},
    {"utility", QOS_CLASS_UTILITY},
    {"background", QOS_CLASS_BACKGROUND},
    {"default", QOS_CLASS_DEFAULT},
};

}  // namespace

void restrict_to_cpus(const std::vector<int64_t>& cpus) {
  throw Failure(ExitCode::usage, "CPUs " + cpu_list_text(cpus) + " cannot be chosen: macOS binds no thread to a CPU",
                "leave --cpus out; --qos background keeps threads on efficiency cores");
}

void request_qos(const std::string& name) {
  for (const QosName& qos : kQosNames) {
    if (name != qos.name) {
      continue;
    }
    const int error = ::pthread_set_qos_class_self_np(qos.value, 0);
    if (error != 0 || ::qos_class_self() != qos.value) {
      throw Failure(ExitCode::usage, "quality of service " + name + " is not granted (" + std::strerror(error) + ")",
                    "leave --qos out");
    }
    return;
  }
  throw Failure(ExitCode::usage, "quality of service " + name + " is not known", "see sme2_runner --help");
}

std::optional<std::vector<int64_t>> allowed_cpus() { return std::nullopt; }

std::optional<std::string> current_qos() {
  const qos_class_t current = ::qos_class_self();
  for (const QosName& qos : kQosNames) {
    if (current == qos.value) {
      return qos.name;
    }
  }
  return "unspecified";
}

}  // namespace sme2
