/* listen.h - the admin port's socket; part of common/admin, nobody else includes it. */
#ifndef RELATA_ADMIN_LISTEN_H
#define RELATA_ADMIN_LISTEN_H

#include "common/base/buf.h"
#include "common/base/status.h"

/* Listens on "host:port" or "[v6]:port" (port 0 = any). *fd is the caller's; `url` gets "http://host:port". */
enum status listen_open(const char *address, int *fd, struct buf *url, struct err *err) MUST_CHECK;
/* Puts one line into `path`, at once or not at all. */
enum status listen_write_url(const char *path, const char *url, struct err *err) MUST_CHECK;

#endif
