# ExecuTorch as a build from a checkout installs it. Its package gives the build's own target names, without
# a namespace; the wheel's package gives others (executorch::runtime, ...) for the same things.
# source_build.py gives executorch_DIR and SME2_EXECUTORCH_CHECKOUT.
find_package(executorch REQUIRED CONFIG)

set(SME2_EXECUTORCH_TARGETS
  executorch
  extension_data_loader
  optimized_native_cpu_ops_lib
  quantized_ops_lib
  xnnpack_backend
  etdump
  extension_threadpool)
foreach(target IN LISTS SME2_EXECUTORCH_TARGETS)
  if(NOT TARGET ${target})
    message(FATAL_ERROR
      "The ExecuTorch installed from ${SME2_EXECUTORCH_CHECKOUT} has no target ${target}: it is too old, "
      "or it was configured without it.")
  endif()
endforeach()

# Headers that are not installed are taken from the checkout, whose folder is named executorch for that.
cmake_path(GET SME2_EXECUTORCH_CHECKOUT PARENT_PATH SME2_CHECKOUT_PARENT)
set(SME2_EXECUTORCH_INCLUDE_DIRS
  ${EXECUTORCH_INCLUDE_DIRS}
  "${SME2_CHECKOUT_PARENT}"
  "${SME2_EXECUTORCH_CHECKOUT}/runtime/core/portable_type/c10")
# Definitions of the directory that the libraries were built in, which no target carries on. Without the
# first, the tracer's classes have another layout here than there.
set(SME2_EXECUTORCH_DEFINITIONS ET_EVENT_TRACER_ENABLED C10_USING_CUSTOM_GENERATED_MACROS)
# Everything is linked in, so the kernels can only be named by the sampler if the program exports them.
set(SME2_EXPORTS "${CMAKE_CURRENT_SOURCE_DIR}/exports_source.txt")
