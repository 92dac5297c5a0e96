# moesaic_all_skipped: matches what a GoogleTest program prints last if it has skipped all of its tests.
set(moesaic_all_skipped "\\[  PASSED  \\] 0 tests\\.\n\\[  SKIPPED \\] [0-9]+ tests?, listed below:\n(\\[  SKIPPED \\] [^\n]*\n)+(\n  YOU HAVE [0-9]+ DISABLED TESTS?\n\n)?$")
