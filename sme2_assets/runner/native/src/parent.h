// A run ends with the process that asked for it.
#pragma once

namespace sme2 {

// Where SME2_RUNNER_PARENT names the process that started this one: the kernel ends this one with it, even if it is
// killed. Linux and Android only; elsewhere nothing happens.
void end_with_parent();

}  // namespace sme2
