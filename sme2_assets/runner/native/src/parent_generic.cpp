#include "parent.h"

namespace sme2 {

void end_with_parent() {}

}  // namespace sme2
