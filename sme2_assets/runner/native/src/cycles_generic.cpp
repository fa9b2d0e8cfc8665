// Systems that count no cycles for a process without privileges.
#include "cycles.h"

namespace sme2 {

CycleCounter::CycleCounter() = default;

CycleCounter::CycleCounter(uint32_t, uint64_t) {}

CycleCounter::~CycleCounter() = default;

std::optional<CycleReading> CycleCounter::read() const { return std::nullopt; }

}  // namespace sme2
