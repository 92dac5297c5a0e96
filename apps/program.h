// The whole program as one function, so that the Python package's `python -m moesaic` is the same program.
#pragma once

namespace moesaic::app {

// Runs the command that argv[1] names and returns the process's exit status: 0, 1 for an error, 2 for wrong
// usage, 130 where SIGINT ended it. Errors are one line on standard error. argv[0] is the program's name. It
// closes no streams, takes SIGINT and SIGTERM where a command wants them, and may be called once in a
// process.
int run_program(int argc, char** argv);

}  // namespace moesaic::app
