// Comparing a device with the reference.
#pragma once

#include <string>

#include "model_options.h"

namespace moesaic::app {

struct VerifyArguments {
  ModelOptions model;  // model.model: to be compared as a whole; empty: none
  bool quick = false, operations = true;
  int tokens = 16;  // compared for the whole model
};
// Prints a line for each case, "ok" or "FAIL" first, then how many agree.
Status run_verify(const VerifyArguments& o);

// verify --report: everything that the owner of a card can tell about it, as one block of text.
struct ReportOptions {
  ModelOptions model;  // model.model: to be compared and timed; empty: one that is generated
  bool quick = false;  // small shapes, few tokens: minutes less
  std::string file;    // gets the text as well; empty: none
  std::string given;   // the command's options, as they were given
};
// Prints and writes each part as it ends. Fails if one of them has failed.
Status run_report(const ReportOptions& o);

}  // namespace moesaic::app
