#!/bin/bash
# The host code built for 64-bit Arm; its unit tests run under qemu-user, and the bundled model answers. Tests of the label
# `native` are left to native machines: emulation makes minutes of their seconds. So are the cases below, whose inputs are large.
set -euo pipefail
cd "$(dirname "$0")/.." && . tools/check_lib.sh
[ "$(uname -m)" = aarch64 ] && skip "this machine is aarch64 itself"
need aarch64-linux-gnu-g++ qemu-aarch64
tools/setup_aarch64.sh
targets=(emulated_tests example_embed example_embed_c bundled_model_test)
if [ -z "${CI:-}" ]; then targets+=(moesaic); fi  # no test here runs it; CI leaves it out, and with it the servers
build aarch64 "${targets[@]}"
emulate() { qemu-aarch64 -cpu "$1" -L /usr/aarch64-linux-gnu "build/aarch64/$2" --gtest_brief=1 "${@:3}"; }
# ctest emulates every extension (-cpu max); these two processors lack i8mm, then the dot product too.
for cpu in neoverse-n1 cortex-a53; do
  emulate $cpu src/backend/cpu/cpu_backend_test
done
emulate max tests/tiny/bundled_model_test --gtest_filter=BundledModel.CallsTools
export GTEST_FILTER='-Tokenizer.HostileTexts*:O200k.AMegabyte*:TokenMasks.*:Hostile*:ManyEntries.*:AddedTokens.Many*'
GTEST_FILTER+=':LimitedJson.BoundsWhatIsBuilt:LimitedJson.TakesWhatRequestsHold:LimitedJson.FilesMayBeLarge:Bpe.LongPieces*'
GTEST_FILTER+=':Bpe.WhatComesLateChangesWhatWasSettled:CheckpointTest.DummiesHaveTheTrueShapes'
GTEST_FILTER+=':CheckpointTest.OneExpertAndOneTokenKeepTheirRank:ThreadPool.EndsWheneverItsOwnerEnds:Dummy.RoutingIsEven*'
GTEST_FILTER+=':ChooseConfig.ByTokens:ChooseToken.FollowsTheRuleWithAWholeVocabulary:RandomGrammars.*:CpuTopology.BrokenSys'
ctest --test-dir build/aarch64 -LE native --output-on-failure --no-tests=error --timeout 1200 -j "$jobs" | summary
