#!/bin/bash
# clang's ThreadSanitizer over the tests that put threads to work: the pool, the kernels, whole models on a backend, the engine
# behind its API and behind the server, the examples that embed it; load_test: the program with its pages full, and ended
# by SIGTERM under load. The other tests are left out, and these tests' cases of one thread: minutes of arithmetic.
set -euo pipefail
cd "$(dirname "$0")/.." && . tools/check_lib.sh
need clang++
readonly tests=(base_test cpu_backend_test parallel_backend_test backend_test engine_test api_test server_test example_embed example_embed_c)
build tsan moesaic "${tests[@]}"
export GTEST_FILTER='-AllIsas/*:AmxTest.*:SamplerFilters.*:Speculation.TheDistributionIsUnchanged:*/reference:*/CpuTiles.*'
GTEST_FILTER+=':Folder.OpensAfterAKillAtAnyMoment:Load.EachRequestGivesWhatItGivesAlone:Load.AHeadsDraftsChangeNoToken'
GTEST_FILTER+=':Fairness.RandomClientsGetTheirShares:*/Batching.CompanyChangesNoToken/*:Fingerprint.*:KvOptions.*:*RanksOfAModel*'
GTEST_FILTER+=':*/SavedKv.AdaptersAreOfTheFingerprint/*:*/SavedKv.Damaged*:*/SavedKv.ASavedPrefixIsFoundByAnotherModel/*'
ctest --test-dir build/tsan -R "^(load_test|$(IFS='|' && echo "${tests[*]}"))\$" --output-on-failure --no-tests=error --timeout 1200 -j "$jobs" | summary
