/* model_file.h - an authorization model in a file. */
#ifndef RELATA_CTL_MODEL_FILE_H
#define RELATA_CTL_MODEL_FILE_H

#include "common/base/status.h"

/* The text of a JSON model, checked to be JSON with type_definitions; malloc'd. ST_CONFIG names file, line, column. */
enum status model_file_read(const char *path, char **json, struct err *err) MUST_CHECK;

#endif
