// A run ends with the process that asked for it.
#pragma once

namespace sme2 {

// Where SME2_RUNNER_PARENT names the process that asked for this run: the kernel ends this one with whatever started
// it, even if that is killed. Linux and Android only; elsewhere nothing happens.
void end_with_parent();

}  // namespace sme2
