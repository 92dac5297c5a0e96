#include "program.h"

int main(int argc, char** argv) { return moesaic::app::run_program(argc, argv); }
