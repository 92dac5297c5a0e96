#!/bin/bash
# The tests once more under clang's AddressSanitizer, LeakSanitizer and UndefinedBehaviorSanitizer, but for those that
# take minutes of it with the code that others run: true shapes, larger models, another device below the same engine, every
# place where an answer can be cut, random load of whole engines (some of it runs), and what takes long enough to be timed. The
# page's tests are left out as well: the server sees of them what other clients send it. The fuzz stage uses the same build.
set -euo pipefail
cd "$(dirname "$0")/.." && . tools/check_lib.sh
need clang++
build asan
slow='Verify.*:Dummy.RoutingIsEven*:ChatCut.*:CompletionCut.*:BundledModel.BackendsAgree'
slow+=':CheckpointTest.OneExpertAndOneTokenKeepTheirRank:CheckpointTest.DummiesHaveTheTrueShapes'
slow+=':*/ModelGolden.*/h288*:*/ModelGolden.*/h96_e24:*/ModelGolden.*/h96_plain_rope:Backends/*/reference'
slow+=':Devices/*/reference:SpeculativeAnswers.*:TinyEagle3.SaysTheSameInFewerSteps'
slow+=':GgufFiles.TableOfThePageIsWhatIsLoaded:GgufFiles.FilesOfLlamaCppsQuantiserAreOpened'
slow+=':Answers.AreABeginningOfTheWholeWhereTheyAreCutOff:Speculation.TheDistributionIsUnchanged:SamplerFilters.*'
slow+=':Tokenizer.HostileTextsTakeTimeByTheirLength:O200k.AMegabyteOfAnythingIsLinear:TokenMasks.OfCountedParts'
slow+=':Load.EachRequestGivesWhatItGivesAlone:Load.AHeadsDraftsChangeNoToken:Fairness.RandomClientsGetTheirShares'
slow+=':Apis/AgentSession.*/messages:Apis/AgentSession.*/chat:Apis/AgentSession.*/ollama:LimitedJson.TakesWhatRequestsHold:LimitedJson.BoundsWhatIsBuilt'
slow+=':ManyEntries.TensorsOfSafetensors:ManyEntries.AKeyThatStandsTwiceIsStillFound'
slow+=':AmxTest.ABf16RowDoesNotDependOnItsNeighbours:AmxTest.*BitForBit:Models/CpuTiles.*/1:Models/CpuTiles.*/2:Models/CpuTiles.*/3'
slow+=':HostileSchema.CountsItsWork:HostileSchema.EndsWithItsClient:HostileSchema.WithstandsManyCostlyFunctions'
slow+=':Load.BlocksThatOutliveTheirPagesChangeNoToken'
slow+=':TokenMasks.AreFastWithARealVocabulary:ServerTest.LargeRequestsDoNotDelaySmallOnes'
export UBSAN_OPTIONS=print_stacktrace=1 MOESAIC_SANITIZED=1 GTEST_FILTER="-$slow"
ctest --test-dir build/asan -LE fuzz -E '^(client_page|docs_|benchmarks_page_|gguf_goldens_)' --output-on-failure --no-tests=error --timeout 900 -j "$jobs" | summary
