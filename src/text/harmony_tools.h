// Harmony's tool section: functions as a namespace of TypeScript-like types (openai/harmony, docs/format.md,
// "Function calling").
#pragma once

#include <string>
#include <vector>

#include "moesaic/status.h"
#include "text/harmony.h"

namespace moesaic {

// Fails where a tool's parameters are no JSON object, and where the text is longer than 16 MB.
Result<std::string> render_tools(const std::vector<Tool>& tools);

}  // namespace moesaic
