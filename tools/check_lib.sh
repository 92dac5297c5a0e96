# Shared by tools/check_*.sh: source it from the repository's root.
jobs=${JOBS:-$(nproc 2>/dev/null || echo 2)}
launcher=$(command -v ccache || true)
if [ -n "$launcher" ]; then export CMAKE_C_COMPILER_LAUNCHER=$launcher CMAKE_CXX_COMPILER_LAUNCHER=$launcher; fi

# Ends the stage as skipped, with the reason as the log's last line.
skip() {
  echo "$1"
  exit 77
}

need() {
  for tool; do command -v "$tool" >/dev/null || skip "no $tool on this machine"; done
}

# dearest_steps FOLDER: the ten longest steps of what ninja has built there, in seconds.
dearest_steps() {
  awk -F '\t' 'NF == 5 { took[$4] = $2 - $1 } END { for (output in took) printf "%.1f s  %s\n", took[output] / 1000, output }' "$1/.ninja_log" |
    sort -rn | sed -n 1,10p
}

# build PRESET [TARGET...]: configures build/PRESET and builds it. The log has its dearest steps.
build() {
  local preset=$1
  shift
  cmake --preset "$preset" ${CI:+-DMOESAIC_BUILT_ONCE=ON} && cmake --build "build/$preset" -j "$jobs" ${1:+--target "$@"} && dearest_steps "build/$preset"
}

# configure_aarch64_cuda FOLDER [OPTION...]: for 64-bit Arm with the CUDA backend, cross-compiled.
configure_aarch64_cuda() {
  local folder=$1 cuda=$PWD/build/cuda-sbsa
  shift
  cmake --preset aarch64 -B "$folder" -DMOESAIC_TESTS=OFF -DMOESAIC_CUDA=ON -DMOESAIC_NVCC="$cuda/bin/nvcc" \
    -DCMAKE_CUDA_COMPILER="$cuda/bin/nvcc" -DCMAKE_CUDA_HOST_COMPILER=aarch64-linux-gnu-g++ \
    -DCMAKE_CUDA_FLAGS="-target-dir sbsa-linux" -DCUDAToolkit_ROOT="$cuda" \
    -DCMAKE_FIND_ROOT_PATH="$PWD/build/sysroot-aarch64;/usr/aarch64-linux-gnu;$cuda" "$@"
}

# Passes a ctest log on, names the tests that passed at their second try, and repeats its summary as the last line.
summary() {
  awk '{ print }
    match($0, /Test +#[0-9]+: [^ ]+/) { test = substr($0, RSTART, RLENGTH); sub(/.* /, "", test) }
    /Test +#.*\*\*\*(Failed|Timeout|Exception)/ { failed[test] = 1 }
    /Test +#.* Passed / && test in failed { again = again " " test }
    /tests passed/ { last = $0 }
    END { if (again) print "passed at the second try:" again; print last }'
}

# The C++ files of this project that git knows or would take up.
sources() {
  git ls-files --cached --others --exclude-standard -- '*.h' '*.cpp' '*.cc' '*.cu' '*.cuh' |
    while read -r file; do [ -f "$file" ] && echo "$file"; done
}
