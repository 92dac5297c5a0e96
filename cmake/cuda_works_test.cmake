# cmake -DNVCC=... -DCXX=... -DFOLDER=... -P cuda_works_test.cmake: what an nvcc that is not in PATH does for AUTO, where it refuses the
# host's compiler (a stand-in that takes no other than the one that -ccbin names), and where that has been mended.
cmake_minimum_required(VERSION 3.22)
file(REMOVE_RECURSE ${FOLDER})
file(WRITE ${FOLDER}/bin/nvcc "#!/bin/sh\ncase \"$*\" in --version|*__cmake_determine_cuda*|*-ccbin*) exec ${NVCC} \"$@\";; esac\nexit 1\n")
file(CHMOD ${FOLDER}/bin/nvcc PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
file(WRITE ${FOLDER}/CMakeLists.txt "cmake_minimum_required(VERSION 3.22)\nproject(works LANGUAGES CXX)\n"
  "include(${CMAKE_CURRENT_LIST_DIR}/cuda_architectures.cmake)\nmoesaic_nvcc_version(version)\nmoesaic_nvcc_works(works \"\${version}\")\n"
  "message(STATUS \"works: \${works}\")\n")

function(expect want)
  execute_process(COMMAND ${CMAKE_COMMAND} -E env --unset=CUDACXX --unset=CUDAHOSTCXX --unset=CUDA_PATH PATH=/usr/bin:/bin
    ${CMAKE_COMMAND} -S ${FOLDER} -B ${FOLDER}/build -DCMAKE_CXX_COMPILER=${CXX} ${ARGN}
    OUTPUT_VARIABLE text ERROR_VARIABLE text RESULT_VARIABLE result)
  string(REGEX REPLACE "[ \n]+" " " text "${text}")
  if(NOT result EQUAL 0 OR NOT text MATCHES "${want}")
    message(SEND_ERROR "${ARGN}: expected '${want}':\n${text}")
  endif()
endfunction()
expect("nvcc [0-9.]+ \\(${FOLDER}/bin/nvcc\\) cannot compile here.*-DMOESAIC_CUDA=ON says why.*works: OFF" -DMOESAIC_NVCC=${FOLDER}/bin/nvcc)
expect("works: ON" -DCMAKE_CUDA_HOST_COMPILER=${CXX})
file(REMOVE_RECURSE ${FOLDER})
