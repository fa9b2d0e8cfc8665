// What a counter of executed instructions finds in an emulator's log: no-ops that no compiler writes.
// sme2_assets/work/counter has the other side.
#pragma once

namespace sme2 {

void mark_start();  // the measured inferences begin
void mark_stop();   // they are over
void mark_begin();  // of an event of the tracer
void mark_end();    // of the innermost event

}  // namespace sme2
