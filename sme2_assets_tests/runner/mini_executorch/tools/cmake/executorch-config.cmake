set(_root "${CMAKE_CURRENT_LIST_DIR}/../../..")
set(EXECUTORCH_INCLUDE_DIRS ${_root}/include ${_root}/include/executorch/runtime/core/portable_type/c10)
set(EXECUTORCH_FOUND ON)
include("${CMAKE_CURRENT_LIST_DIR}/ExecuTorchTargets.cmake")
