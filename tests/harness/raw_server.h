/*
 * raw_server.h - an HTTP peer that may send any bytes: cut, slow, endless or wrong answers, over TCP, TLS or a Unix
 * socket. What fake_store.h cannot say, this can.
 *
 * Each connection has a thread of its own, which reads a whole request and calls the handler. Functions are
 * thread-safe. Failures of the set-up itself end the process with a message.
 */
#ifndef RELATA_TESTS_RAW_SERVER_H
#define RELATA_TESTS_RAW_SERVER_H

#include <stdbool.h>
#include <stddef.h>

struct raw_server;
struct raw_peer;

struct raw_request {
    const char *head; /* request line and headers, NUL-terminated */
    const char *body; /* NUL-terminated */
    size_t body_len;
    int number;     /* of this request at the server, from 0 */
    int connection; /* of its connection, from 0 */
};

enum raw_next {
    RAW_KEEP,  /* read the next request on this connection */
    RAW_CLOSE, /* end it in an orderly way */
    RAW_RESET, /* RST */
};

struct raw_options {
    const char *socket_path;                           /* a Unix socket instead of TCP */
    const char *cert_file, *key_file, *client_ca_file; /* TLS; client_ca_file asks for a certificate */
    enum raw_next (*handler)(struct raw_peer *p, const struct raw_request *rq, void *arg);
    void *arg;
};

struct raw_server *raw_server_start(const struct raw_options *options);
void raw_server_stop(struct raw_server *s); /* accepts NULL */
/* "http://127.0.0.1:40123", "https://..." or "unix:/path". */
const char *raw_server_url(const struct raw_server *s);
int raw_server_requests(struct raw_server *s);
int raw_server_connections(struct raw_server *s);

/* For handlers. False once the client is gone or the server is being stopped. */
bool raw_send(struct raw_peer *p, const void *data, size_t len);
bool raw_sendf(struct raw_peer *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* A whole answer. `headers` ("A: b\r\n") may be "". */
bool raw_reply(struct raw_peer *p, int status, const char *headers, const char *body);
/* Wait; ends early when the client goes away or the server is stopped (then false). */
bool raw_pause(struct raw_peer *p, int ms);
/* No new connections from now on: they are refused. */
void raw_server_refuse(struct raw_server *s);

#endif
