# cmake -DNM=nm -DLIBRARY=libwkvm_core.a -P symbols_test.cmake, of a build without sanitizers.
#
# A translation unit with special instruction flags defines its table and nothing else that the
# linker can see: of an inline function with external linkage, the linker keeps any one copy, and
# that could be one that this CPU cannot run.
execute_process(COMMAND ${NM} -A --defined-only --extern-only ${LIBRARY}
                OUTPUT_VARIABLE output RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "${NM} cannot read ${LIBRARY}")
endif()
string(REGEX MATCHALL "[^\n]*kernels_(avx|neon)[^\n]*" symbols "${output}")
if(NOT symbols)
  message(FATAL_ERROR "no unit of an instruction set in ${LIBRARY}")
endif()
foreach(symbol IN LISTS symbols)
  if(NOT symbol MATCHES "[^\n]* [DR] _ZN4wkvm[0-9]+kKernels[A-Za-z0-9]+E$")
    message(FATAL_ERROR "visible beside the table: ${symbol}")
  endif()
endforeach()
