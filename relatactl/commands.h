/* commands.h - the commands of relatactl, one or a few a file. */
#ifndef RELATA_CTL_COMMANDS_H
#define RELATA_CTL_COMMANDS_H

#include "relatactl/ctl.h"

extern const struct command command_migrate;

#endif
