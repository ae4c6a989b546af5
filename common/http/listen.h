/* listen.h - listening sockets for HTTP servers: TCP by "host:port", Unix by path; `setting` is the option that errors
 * name. */
#ifndef RELATA_HTTP_LISTEN_H
#define RELATA_HTTP_LISTEN_H

#include <stdbool.h>

#include "common/base/buf.h"
#include "common/base/status.h"

/* ST_CONFIG if it is not of that form. Looks nothing up. */
enum status listen_check(const char *setting, const char *address, struct err *err) MUST_CHECK;
/* Listens on "host:port" or "[v6]:port" (port 0 = any). *fd is the caller's; `url` gets "http://host:port". */
enum status listen_open(const char *setting, const char *address, int backlog, int *fd, struct buf *url,
                        struct err *err) MUST_CHECK;
/* Whether the socket is bound to an address of this machine alone. */
bool listen_is_loopback(int fd);
/* An absolute path that fits into a socket's address; ST_CONFIG. */
enum status listen_check_local(const char *setting, const char *path, struct err *err) MUST_CHECK;
/* Listens on a Unix socket of mode 0660. One that nobody serves any more is replaced; one that somebody serves is
 * ST_CONFIG. *fd is the caller's, the file too. */
enum status listen_local(const char *setting, const char *path, int backlog, int *fd, struct err *err) MUST_CHECK;
/* Whether the file can be made: ST_OK or ST_CONFIG, as listen_write_url() would say. */
enum status listen_check_url(const char *setting, const char *path, struct err *err) MUST_CHECK;
/* Puts one line into `path`, at once or not at all. */
enum status listen_write_url(const char *setting, const char *path, const char *url, struct err *err) MUST_CHECK;

#endif
