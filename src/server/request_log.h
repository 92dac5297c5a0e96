// A line of JSON for each request, on standard error.
#pragma once

#include "server/http.h"

namespace moesaic::server {

// A log that cannot be written, as on a full disk, is lost; the request is not.
void log_request(const HttpRequest& request, const RequestRecord& record);
void log_event(std::string_view event, std::string_view detail = {});

}  // namespace moesaic::server
