// ExecuTorch's event tracer, which can be told to record nothing for a while, and marks what it records.
//
// Warm-up lasts for a time, not for a number of inferences: a small model makes thousands of them, and their events
// would fill the trace and the memory of the process.
//
// What the tracer itself does lies outside the marks of an event. They cost a call each, and only the work pass
// reads them.
#pragma once

#include <executorch/devtools/etdump/etdump_flatcc.h>

#include "marks.h"

namespace sme2 {

class PausableTracer : public executorch::etdump::ETDumpGen {
 public:
  void pause() { paused_ = true; }
  void resume() { paused_ = false; }

  void create_event_block(const char* name) override {
    if (!paused_) {
      ETDumpGen::create_event_block(name);
    }
  }
  executorch::runtime::EventTracerEntry start_profiling(const char* name, executorch::runtime::ChainID chain_id,
                                                        executorch::runtime::DebugHandle debug_handle) override {
    if (paused_) {
      return {};
    }
    const auto entry = ETDumpGen::start_profiling(name, chain_id, debug_handle);
    mark_begin();
    return entry;
  }
  void end_profiling(executorch::runtime::EventTracerEntry entry) override {
    if (!paused_) {
      mark_end();
      ETDumpGen::end_profiling(entry);
    }
  }
  executorch::runtime::EventTracerEntry start_profiling_delegate(
      const char* name, executorch::runtime::DelegateDebugIntId index) override {
    if (paused_) {
      return {};
    }
    const auto entry = ETDumpGen::start_profiling_delegate(name, index);
    mark_begin();
    return entry;
  }
  void end_profiling_delegate(executorch::runtime::EventTracerEntry entry, const void* metadata, size_t size) override {
    if (!paused_) {
      mark_end();
      ETDumpGen::end_profiling_delegate(entry, metadata, size);
    }
  }
  void log_profiling_delegate(const char* name, executorch::runtime::DelegateDebugIntId index, et_timestamp_t start,
                              et_timestamp_t end, const void* metadata, size_t size) override {
    if (!paused_) {
      ETDumpGen::log_profiling_delegate(name, index, start, end, metadata, size);
    }
  }
  void track_allocation(executorch::runtime::AllocatorID id, size_t size) override {
    if (!paused_) {
      ETDumpGen::track_allocation(id, size);
    }
  }
  executorch::runtime::Result<bool> log_evalue(const executorch::runtime::EValue& value,
                                               executorch::runtime::LoggedEValueType type) override {
    return paused_ ? executorch::runtime::Result<bool>(false) : ETDumpGen::log_evalue(value, type);
  }

 private:
  bool paused_ = false;
};

}  // namespace sme2
