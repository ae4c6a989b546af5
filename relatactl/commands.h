/* commands.h - the commands of relatactl, one or a few a file. */
#ifndef RELATA_CTL_COMMANDS_H
#define RELATA_CTL_COMMANDS_H

#include "relatactl/ctl.h"

extern const struct command command_migrate;
extern const struct command command_lag;
extern const struct command command_dead_letters_list, command_dead_letters_show, command_dead_letters_replay,
    command_dead_letters_drop;
extern const struct command command_store_pin, command_store_show, command_store_verify, command_store_own,
    command_store_disown;
extern const struct command command_model_show, command_model_list, command_model_use;
extern const struct command command_trace, command_events, command_seed, command_adopt;
extern const struct command command_history, command_who_could;

#endif
