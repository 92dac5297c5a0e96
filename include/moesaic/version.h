/* The version of these headers. moesaic_version() and moesaic_version_number() (moesaic.h), or
 * moesaic::version() (device.h), give that of the library that is linked. For C and C++. */
#ifndef MOESAIC_VERSION_H
#define MOESAIC_VERSION_H

#define MOESAIC_VERSION_MAJOR 0
#define MOESAIC_VERSION_MINOR 1
#define MOESAIC_VERSION_PATCH 0
/* 10203 is 1.2.3 */
#define MOESAIC_VERSION_NUMBER \
  (MOESAIC_VERSION_MAJOR * 10000 + MOESAIC_VERSION_MINOR * 100 + MOESAIC_VERSION_PATCH)

#endif
