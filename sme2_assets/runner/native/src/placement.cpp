#include "placement.h"

namespace sme2 {

std::string cpu_list_text(const std::vector<int64_t>& cpus) {
  std::string text;
  for (size_t first = 0; first < cpus.size();) {
    size_t last = first;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) {
      ++last;
    }
    text += (text.empty() ? "" : ",") + std::to_string(cpus[first]);
    if (last > first) {
      text += "-" + std::to_string(cpus[last]);
    }
    first = last + 1;
  }
  return text;
}

}  // namespace sme2
