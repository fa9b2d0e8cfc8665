// Systems that tell a process neither frequencies nor temperatures.
#include "conditions.h"

namespace sme2 {

ConditionsReader::ConditionsReader(const std::optional<std::vector<int64_t>>&) {}

ConditionsReader::~ConditionsReader() = default;

Conditions ConditionsReader::read(const std::string& at) const { return {at, std::nullopt, {}, std::nullopt}; }

}  // namespace sme2
