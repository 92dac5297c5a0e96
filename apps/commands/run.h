// The command `run`, for other commands.
#pragma once

#include "session.h"

namespace moesaic::app {

// Answers o.prompt if o.has_prompt, else holds a conversation.
Status run_run(RunOptions o);

}  // namespace moesaic::app
