// Options and requests that an engine refuses.
#include <cmath>

#include "engine/small_model_test.h"

namespace moesaic {
namespace {

class EngineRefusals : public SmallModelTest {};

TEST_P(EngineRefusals, RefusesWhatItCannotServe) {
  Engine e = engine(1, 100);
  EXPECT_FALSE(e.submit({}, {}, quiet()).ok());
  EXPECT_FALSE(e.submit(prompt(100, 1), {}, quiet()).ok());
  EXPECT_FALSE(e.submit({0, 300}, {}, quiet()).ok());
  EXPECT_FALSE(e.submit({0}, {.temperature = NAN}, quiet()).ok());
  for (const EngineOptions& o : std::vector<EngineOptions>{{.context = 5000},
                                                           {.context = -1},
                                                           {.context = 200, .kv_tokens = 199},
                                                           {.max_batch = 0},
                                                           {.max_batch = -3},
                                                           {.max_rows = 0},
                                                           {.max_batch = 8, .max_rows = 7},
                                                           {.max_batch = 8, .max_rows = 64, .mixed_rows = 7},
                                                           {.max_batch = 1 << 30, .max_rows = 1 << 30}}) {
    EXPECT_FALSE(Engine::create(*backend_, config_, o).ok());
  }
  EXPECT_TRUE(e.idle());
}

TEST_P(EngineRefusals, ZeroIsTheModelsContext) {
  Engine e = Engine::create(*backend_, config_, {.context = 0}).value();
  EXPECT_TRUE(e.submit(prompt(config_.max_context - 1, 1), {}, quiet()).ok());
  EXPECT_FALSE(e.submit(prompt(config_.max_context, 1), {}, quiet()).ok());
}

INSTANTIATE_TEST_SUITE_P(Backends, EngineRefusals, kHostBackends, backend_name);

}  // namespace
}  // namespace moesaic
