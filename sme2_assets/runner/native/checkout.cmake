# ExecuTorch from a checkout, configured and built as a part of this project. CMakePresets.json says with which
# options; only what the runner needs of it is built, and nothing of it is installed.
enable_language(C)
add_subdirectory("${SME2_EXECUTORCH_CHECKOUT}" executorch EXCLUDE_FROM_ALL)

# ExecuTorch's own target names; the wheel's package gives others (executorch::runtime, ...) for the same things.
set(SME2_EXECUTORCH_TARGETS
  executorch
  extension_data_loader
  extension_flat_tensor
  optimized_native_cpu_ops_lib
  quantized_ops_lib
  xnnpack_backend
  etdump
  extension_threadpool)
foreach(target IN LISTS SME2_EXECUTORCH_TARGETS)
  if(NOT TARGET ${target})
    message(FATAL_ERROR
      "The ExecuTorch in ${SME2_EXECUTORCH_CHECKOUT} has no target ${target}: it is too old, or too new for "
      "this version of sme2_assets. Release v1.5.1 is known to have it.")
  endif()
endforeach()

file(STRINGS "${SME2_EXECUTORCH_CHECKOUT}/version.txt" SME2_EXECUTORCH_VERSION LIMIT_COUNT 1)
# Definitions of the directory that the libraries are built in, which no target carries on. Without the first,
# the tracer's classes have another layout here than there.
set(SME2_EXECUTORCH_DEFINITIONS ET_EVENT_TRACER_ENABLED)
# Everything is linked in, so the kernels can only be named by the sampler if the program exports them.
set(SME2_EXPORTS "${CMAKE_CURRENT_SOURCE_DIR}/exports_source.txt")
