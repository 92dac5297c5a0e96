// A conversation: lines of standard input answered in turn; at a terminal with an editor and commands.
#pragma once

#include "session.h"

namespace moesaic::app {

Status chat(Session& session);

}  // namespace moesaic::app
