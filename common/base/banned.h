/* banned.h - calls that lose lengths or cannot be bounded are compile errors here (the idea is git's). */
#ifndef RELATA_BASE_BANNED_H
#define RELATA_BASE_BANNED_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Some compilers make these macros when fortified; a macro cannot be poisoned. */
#undef sprintf
#undef vsprintf

#pragma GCC poison strcpy strcat strncpy strncat sprintf vsprintf gets strtok
#pragma GCC poison gmtime localtime ctime asctime atoi atol atoll

#endif
