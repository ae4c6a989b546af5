/*
 * drift-checker - proves that inventory, ledger and authorization store agree, and repairs. docs/drift-checker.md
 */
#include <stdio.h>

#include "common/base/log.h"
#include "drift-checker/audit.h"

int main(int argc, char **argv)
{
    static struct settings cfg;
    struct err err = {0};
    enum cfg_action action;
    enum audit_exit code = AUDIT_CLEAN;

    stop_init();
    if (config_load(&settings_program, argc, argv, &cfg, &action, &err) != ST_OK) {
        (void)fprintf(stderr, "drift-checker: %s\n", err.text);
        return AUDIT_INCOMPLETE;
    }
    if (action == CFG_RUN) {
        log_init("drift-checker", (enum log_level)cfg.log.level, (enum log_format)cfg.log.format);
        code = audit_run(&cfg);
        if ((fflush(stdout) != 0 || ferror(stdout)) && code != AUDIT_INCOMPLETE) {
            (void)fprintf(stderr, "drift-checker: cannot write to standard output\n");
            code = AUDIT_INCOMPLETE;
        }
    }
    config_release(&settings_program, &cfg);
    return (int)code;
}
